package sandbox

import (
	"bytes"
	"compress/gzip"
	"embed"
	"io"
	"runtime"
)

// inits are the init of every machine, built by make inits.
//
//go:embed inits/*.gz
var inits embed.FS

func initProgram() ([]byte, error) {
	b, err := inits.ReadFile("inits/" + runtime.GOARCH + ".gz")
	if err != nil {
		return nil, &errUnusable{"there is no sandbox for " + runtime.GOARCH, err}
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}
