package egress

import (
	_ "embed"
	"os"
	"path/filepath"
	"strings"
)

// nodePreload has Node's https and fetch take the gateway.
//
//go:embed node-preload.cjs
var nodePreload string

// roots are where systems keep the certificates that they trust.
var roots = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem", "/usr/local/etc/openssl/cert.pem"}

// Names of the files that ClientFiles makes and ClientEnv names.
const (
	ownFile     = "gateway.pem"
	bundleFile  = "bundle.pem"
	preloadFile = "preload.cjs"
)

// ClientFiles are the files that a client of the gateway reads: the gateway's certificate,
// that with the system's, and what Node needs to know.
func ClientFiles(ca string) map[string][]byte {
	all := ca
	for _, f := range append([]string{os.Getenv("SSL_CERT_FILE")}, roots...) {
		if b, err := os.ReadFile(f); f != "" && err == nil {
			all = string(b) + "\n" + ca
			break
		}
	}
	return map[string][]byte{ownFile: []byte(ca), bundleFile: []byte(all), preloadFile: []byte(nodePreload)}
}

// ClientEnv are the variables, NAME=value, that clients read: curl, git, Go, Python, pip,
// npm and Node. Dir is where they find ClientFiles, node what NODE_OPTIONS holds already.
func ClientEnv(dir, proxy, placeholder, node string) []string {
	own, bundle, preload := filepath.Join(dir, ownFile), filepath.Join(dir, bundleFile), filepath.Join(dir, preloadFile)
	out := []string{"PATCHBAY_PLACEHOLDER=" + placeholder, "NODE_EXTRA_CA_CERTS=" + own, "NODE_OPTIONS=" + strings.TrimSpace(node+" --require "+preload)}
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		out = append(out, name+"="+proxy)
	}
	for _, name := range []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "REQUESTS_CA_BUNDLE", "PIP_CERT", "npm_config_cafile", "CARGO_HTTP_CAINFO", "AWS_CA_BUNDLE"} {
		out = append(out, name+"="+bundle)
	}
	return out
}

// Near are the hosts that clients reach without the gateway.
const Near = "localhost,127.0.0.1,::1"
