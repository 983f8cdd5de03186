// Package plane holds the nouns of Patchbay: ids, agents, connections, calls,
// runs, limits, the clock, the transaction handle, validation and the one error
// type. It imports the standard library only, decides nothing and does no I/O,
// so every other package may speak in its words.
package plane
