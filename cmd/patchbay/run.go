package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"patchbay/internal/command"
	"patchbay/internal/consent"
	"patchbay/internal/plane"
)

const maxInput = 2 << 20

// run runs a command of the registry at the server and writes its output.
func (e *env) run(cmd *command.Command, in any) error {
	switch in := in.(type) {
	case *command.MCPCallInput:
		return e.call(in)
	case *command.MCPAddJSONInput:
		if err := e.object(&in.JSON, `'{"url": "https://…"}'`); err != nil {
			return err
		}
	case *command.MCPAddInput:
		if err := e.secrets(in); err != nil {
			return err
		}
	case *command.ProposeInput:
		if err := e.text(&in.Declaration); err != nil {
			return err
		}
	case *command.RegistryAddInput:
		if err := e.text(&in.Declaration); err != nil {
			return err
		}
	case *command.SecretsPutInput:
		v, err := e.line("The secret " + in.Ref + ": ")
		if err != nil {
			return err
		}
		in.Value = v
	case *command.MCPImportInput:
		if err := e.file(in); err != nil {
			return err
		}
	case *command.ConnectInput:
		if in.Local || in.NoBrowser {
			return e.connectLocal(in)
		}
	}
	out := cmd.Output()
	if err := e.client.Command(e.ctx, cmd.Name, in, out); err != nil {
		return err
	}
	if err := e.write(out); err != nil {
		return err
	}
	if f, ok := out.(interface{ Failed() bool }); ok && f.Failed() {
		return exitCode(exitFailed)
	}
	return nil
}

// object reads an object from standard input for "-". What else is no object is
// told how it is written.
func (e *env) object(o *command.Object, how string) error {
	if string(*o) == "-" {
		b, err := io.ReadAll(io.LimitReader(e.in, maxInput))
		if err != nil {
			return plane.Errorf(plane.InvalidInput, "The JSON cannot be read from standard input.").Because(err)
		}
		*o = command.Object(strings.TrimSpace(string(b)))
	}
	var obj map[string]json.RawMessage
	if len(*o) > 0 && (json.Unmarshal(*o, &obj) != nil || obj == nil) {
		return plane.Errorf(plane.InvalidInput, "That is not a JSON object.").At("json").Then(how)
	}
	return nil
}

// secrets takes what must not stand on a command line from standard input, and
// warns about what does.
func (e *env) secrets(in *command.MCPAddInput) error {
	if in.Address == "" {
		in.Address = in.URL
	}
	for i, h := range in.Header {
		name, value, ok := strings.Cut(h, ":")
		if !ok || strings.TrimSpace(value) == "" {
			continue // it is refused for its form
		}
		if strings.TrimSpace(value) == "-" {
			v, err := e.line("")
			if err == nil && v == "" {
				err = plane.Errorf(plane.InvalidInput, "Standard input holds no value for the header %s.", name).At("headers")
			}
			if err != nil {
				return err
			}
			in.Header[i] = name + ": " + v
			continue
		}
		fmt.Fprintln(e.err, "patchbay: The header's value now stands in this shell's history. A value of - is read from standard input; without --header a link asks for it.")
	}
	if in.ClientID != "" && in.ClientAuth != "none" {
		v, err := e.line("Client secret of " + in.ClientID + " (empty for none): ")
		if err != nil {
			return err
		}
		in.ClientSecret = v
	}
	return nil
}

// line reads one line, without echo on a terminal.
func (e *env) line(prompt string) (string, error) {
	v, err := readSecret(e.in, e.err, prompt)
	if err != nil {
		return "", plane.Errorf(plane.InvalidInput, "Nothing can be read from standard input.").Because(err)
	}
	return v, nil
}

// call runs a tool, and says so by its exit code when the tool failed.
func (e *env) call(in *command.MCPCallInput) error {
	if err := e.object(&in.Arguments, `'{"key": "value"}', or -a key=value for each`); err != nil {
		return err
	}
	var out command.MCPCall
	if err := e.client.Command(e.ctx, "mcp.call", in, &out); err != nil {
		if e.ctx.Err() != nil {
			fmt.Fprintln(e.err, "patchbay: No longer waiting. Whether the call took effect is on record.\nNext: patchbay status")
			return exitCode(exitUsage)
		}
		return err
	}
	if err := e.write(&out); err != nil {
		return err
	}
	if out.IsError {
		return exitCode(exitFailed)
	}
	return nil
}

// connectLocal takes a sign-in's answer on this machine and hands it over, for
// servers that send browsers to loopback only.
func (e *env) connectLocal(in *command.ConnectInput) error {
	var l net.Listener
	if !in.NoBrowser {
		var err error
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			return plane.Errorf(plane.Unavailable, "No port of this machine can be listened on.").Then("--no-browser").Because(err)
		}
		defer l.Close()
		in.Redirect = "http://" + l.Addr().String() + consent.LocalCallback
	}
	in.Local = true
	var started command.MCPAdded
	if err := e.client.Command(e.ctx, "mcp.connect", in, &started); err != nil {
		return err
	}
	if e.json {
		fmt.Fprintf(e.err, "%s\n", started.SignInURL)
	} else {
		started.Text(e.err, e.style)
	}
	ended := ""
	if in.NoBrowser {
		fmt.Fprint(e.err, "\nWhen the browser ends at an address of 127.0.0.1, paste that address here: ")
		line, err := bufio.NewReader(e.in).ReadString('\n')
		if err != nil && strings.TrimSpace(line) == "" {
			return plane.Errorf(plane.InvalidInput, "No address was given.").Then("patchbay mcp connect " + in.Name + " --local --no-browser").Because(err)
		}
		ended = strings.TrimSpace(line)
	} else {
		openBrowser(e.ctx, started.SignInURL)
		var err error
		if ended, err = e.answer(l); err != nil {
			return err
		}
	}
	var out command.MCPAdded
	if err := e.client.Command(e.ctx, "mcp.finish", command.FinishInput{URL: ended}, &out); err != nil {
		return err
	}
	return e.write(&out)
}

// answerTime is how long a person may take to sign in.
const answerTime = 10 * time.Minute

// answer waits for the browser to come back.
func (e *env) answer(l net.Listener) (string, error) {
	got := make(chan string, 1)
	srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != consent.LocalCallback || r.URL.Query().Get("state") == "" {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		io.WriteString(w, "The answer is handed to Patchbay. Look at the terminal; you can close this page.\n")
		select {
		case got <- "http://" + l.Addr().String() + r.URL.RequestURI():
		default:
		}
	})}
	go srv.Serve(l)
	defer srv.Shutdown(context.WithoutCancel(e.ctx))
	select {
	case u := <-got:
		return u, nil
	case <-time.After(answerTime):
		return "", plane.Errorf(plane.Gone, "Nobody signed in within %d minutes.", int(answerTime.Minutes())).Then("Run the same command again.")
	case <-e.ctx.Done():
		return "", errors.New("cancelled")
	}
}

// openBrowser tries to show an address; it also stands in the terminal.
func openBrowser(ctx context.Context, url string) {
	name := "xdg-open"
	if runtime.GOOS == "darwin" {
		name = "open"
	}
	if path, err := exec.LookPath(name); err == nil && strings.HasPrefix(url, "http") {
		c := exec.CommandContext(context.WithoutCancel(ctx), path, url)
		if c.Start() == nil {
			go c.Wait()
		}
	}
}
