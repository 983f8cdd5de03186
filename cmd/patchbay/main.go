// Command patchbay lets agents use the tools of MCP servers, governed and on
// the record. `patchbay serve` is the server; every other command speaks to it.
package main

import "os"

func main() { os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
