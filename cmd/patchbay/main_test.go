package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"patchbay/internal/app"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"patchbay": main})
}

// The command line, as a session in a terminal would read. Each script has a
// data directory of its own; waitready waits for the server it started.
func TestCommandLine(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATCHBAY_DATA", filepath.Join(e.WorkDir, "d"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("ANTHROPIC_API_KEY", "")
			e.Setenv("OPENAI_API_KEY", "")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"waitready": func(ts *testscript.TestScript, _ bool, _ []string) {
				sock := filepath.Join(ts.Getenv("PATCHBAY_DATA"), app.SocketName)
				for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
					if c, err := net.Dial("unix", sock); err == nil {
						c.Close()
						return
					}
					if time.Now().After(end) {
						ts.Fatalf("no server at %s", sock)
					}
				}
			},
			"setenvfrom": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
			},
		},
		UpdateScripts: os.Getenv("UPDATE") != "",
	})
}
