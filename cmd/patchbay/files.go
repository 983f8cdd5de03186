package main

import (
	"io"
	"os"
	"slices"

	"patchbay/internal/bridge"
	"patchbay/internal/command"
	"patchbay/internal/plane"
)

// text reads a text from standard input for "-".
func (e *env) text(s *string) error {
	if *s != "-" {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(e.in, maxInput))
	if err != nil {
		return plane.Errorf(plane.InvalidInput, "Nothing can be read from standard input.").Because(err)
	}
	*s = string(b)
	return nil
}

// file reads a file that is imported, and the values it leaves open: from this machine's
// environment where somebody named them, else from whoever sits here. A file must not help
// itself to what stands in the environment.
func (e *env) file(in *command.MCPImportInput) error {
	var b []byte
	var err error
	file := in.Content
	if file == "-" {
		b, err = io.ReadAll(io.LimitReader(e.in, maxInput))
	} else {
		b, err = os.ReadFile(file)
	}
	if err != nil {
		return plane.Errorf(plane.InvalidInput, "The file %s cannot be read.", file).At("file").Because(err)
	}
	in.Content = string(b)
	vars, err := command.FileVariables(b)
	if err != nil {
		return err
	}
	in.Values = map[string]string{}
	if in.DryRun {
		return nil // nothing of this machine is needed, nor sent
	}
	for _, v := range vars {
		if slices.Contains(in.Env, v.Name) {
			in.Values[v.Name] = os.Getenv(v.Name)
			continue
		}
		if v.Default != "" {
			in.Values[v.Name] = v.Default
			continue
		}
		f, ok := e.in.(*os.File)
		if file == "-" || !ok || !isTerminal(f) {
			continue // the server says which value is missing
		}
		prompt := v.Name
		if v.Prompt != "" {
			prompt += " (" + bridge.Visible(v.Prompt) + ")"
		}
		if in.Values[v.Name], err = e.line(prompt + ": "); err != nil {
			return err
		}
	}
	return nil
}
