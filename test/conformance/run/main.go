// Command run drives the official conformance suites against our client and our
// server and prints one line a scenario.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"patchbay/bench/figures"
	"patchbay/test/peers"
)

// suite is one run of one version of the suites, and what it must hold.
type suite struct {
	name, module string
	args         []string
	scenarios    []string
}

// signIn are the scenarios of authorization that every set has; signIn2026 came
// with 2026-07-28. Extensions (client credentials, DPoP, enterprise and workload
// identity) are scored by no set and left out.
var (
	signIn = []string{"auth/metadata-default", "auth/metadata-var1", "auth/metadata-var2", "auth/metadata-var3", "auth/basic-cimd",
		"auth/scope-from-www-authenticate", "auth/scope-from-scopes-supported", "auth/scope-omitted-when-undefined", "auth/scope-step-up",
		"auth/scope-retry-limit", "auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-post", "auth/token-endpoint-auth-none", "auth/pre-registration"}
	signIn2026 = []string{"auth/resource-mismatch", "auth/offline-access-scope", "auth/offline-access-not-supported", "auth/authorization-server-migration",
		"auth/iss-supported", "auth/iss-not-advertised", "auth/iss-supported-missing", "auth/iss-wrong-issuer", "auth/iss-unexpected", "auth/iss-normalized",
		"auth/metadata-issuer-mismatch"}
	extensions = []string{"auth/client-credentials-jwt", "auth/client-credentials-basic", "auth/enterprise-managed-authorization", "auth/dpop", "auth/dpop-nonce", "auth/wif-jwt-bearer"}
)

var suites = []suite{
	{"0.1.16 core", "conformance-stable", []string{"--suite", "core"},
		slices.Concat([]string{"initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"}, signIn)},
	{"0.1.16 auth", "conformance-stable", []string{"--suite", "auth"}, signIn},
	{"0.2.0-alpha.12 2025-11-25", "conformance-next", []string{"--requirements", "2025-11-25"},
		slices.Concat([]string{"initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry", "json-schema-2020-12-preservation"}, signIn)},
	{"0.2.0-alpha.12 2026-07-28", "conformance-next", []string{"--requirements", "2026-07-28"},
		slices.Concat([]string{"tools_call", "request-metadata", "sep-2322-client-request-state", "http-standard-headers", "http-custom-headers", "http-invalid-tool-headers",
			"json-schema-ref-no-deref", "json-schema-2020-12-preservation"}, signIn, signIn2026)},
}

func main() {
	if len(os.Args) != 3 {
		log.Fatal("usage: run CLIENT PATCHBAY")
	}
	client, err := filepath.Abs(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	patchbay, err := filepath.Abs(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	sheet := figures.New(os.Stdout)
	if err := runServers(patchbay, sheet); err != nil {
		log.Fatal(err)
	}
	if err := runAuthorization(patchbay, sheet); err != nil {
		log.Fatal(err)
	}
	for _, s := range suites {
		if err := s.run(client, sheet); err != nil {
			log.Fatal(err)
		}
	}
	sheet.Exit()
}

// line is a scenario's line of the summary that the suites print.
var line = regexp.MustCompile(`(?m)^. ([\w/-]+): (\d+) passed, (\d+) failed(?:, (\d+) warnings)?`)

func (s suite) run(client string, sheet *figures.Sheet) error {
	out, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(out)
	args := append([]string{filepath.Join(peers.Dir(), "node_modules", s.module, "dist", "index.js"), "client", "--command", client, "-o", out}, s.args...)
	cmd := exec.Command(peers.Node(), args...)
	var b bytes.Buffer
	cmd.Stdout, cmd.Stderr = &b, &b
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("%s: %w", s.name, err) // a scenario that fails shows in the summary
	}
	got := map[string][]string{}
	for _, m := range line.FindAllStringSubmatch(b.String(), -1) {
		got[m[1]] = m[2:]
	}
	for name := range got {
		if !slices.Contains(extensions, name) && !slices.Contains(s.scenarios, name) && !strings.HasPrefix(name, "sep-2640") {
			sheet.Passed(s.name+" "+name, "not known here", "in the list", false)
		}
	}
	for _, name := range s.scenarios {
		m, ok := got[name]
		if !ok {
			sheet.Passed(s.name+" "+name, "did not run", "0 failed", false)
			continue
		}
		fine := m[0] != "0" && m[1] == "0" && (m[2] == "" || m[2] == "0")
		sheet.Passed(s.name+" "+name, fmt.Sprintf("%s passed, %s failed", m[0], m[1]), "0 failed", fine)
	}
	return nil
}
