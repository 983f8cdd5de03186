// Package patchbay is the root of the module. It holds no code: the program is
// cmd/patchbay, its parts are under internal, and the tests here hold the rules
// of the layout.
package patchbay
