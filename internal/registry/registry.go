// Package registry knows which servers are on offer and who asks for them: the
// registry's own declarations, agents' lists, repositories, skills and what teams
// accepted. It promises that every source is read by one strict parser, that the merge
// is one pure function, that what is dropped says why, and that a declaration never
// widens what an agent may reach. A proposal is stored only after it was searched for
// credentials and traps, and nobody but a person accepts one.
package registry
