package main

import (
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"patchbay/internal/client"
	"patchbay/internal/command"
	"patchbay/internal/freeport"
	"patchbay/internal/netguard"
	"patchbay/internal/store/storetest"
)

// plant is the processes under test, on one database.
type plant struct {
	bin      string
	far      *far
	replicas []*replica
	pg       *storetest.Cluster
	db       *sql.DB
	token    string // of the agent's clients
	stop     []func()
}

// replica is one process, with what stands between it and its database.
type replica struct {
	name   string
	dir    string
	file   string
	addr   string
	env    []string
	cmd    *exec.Cmd
	wire   *wire
	client *client.Client
	mu     sync.Mutex
	paused bool
}

func newPlant(bin string, pg bool, llm string) (p *plant, err error) {
	p = &plant{bin: bin, far: newFar()}
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	n := 1
	database := "sqlite"
	var env []string
	if pg {
		n = 2
		if p.pg, err = storetest.StartCluster(); err != nil {
			return p, err
		}
		p.stop = append(p.stop, p.pg.Stop)
		key, err := exec.Command(bin, "keys", "generate").Output()
		if err != nil {
			return p, err
		}
		env = []string{"PATCHBAY_KEYS=" + strings.TrimSpace(string(key))}
	}
	for i := range n {
		dir, err := os.MkdirTemp("", "faults")
		if err != nil {
			return p, err
		}
		p.stop = append(p.stop, func() { os.RemoveAll(dir) })
		r := &replica{name: fmt.Sprintf("replica %d", i+1), dir: dir, file: filepath.Join(dir, "patchbay.yaml"), env: append([]string{"FAULTS_LLM_KEY=none"}, env...)}
		if pg {
			if r.wire, err = newWire(p.pg.URL); err != nil {
				return p, err
			}
			database = r.wire.url
		}
		if port, err := freeport.Take(); err == nil {
			r.addr = freeport.Addr(port)
		} else {
			return p, err
		}
		if err := os.WriteFile(r.file, []byte(p.config(r, database, llm)), 0o600); err != nil {
			return p, err
		}
		r.client = client.New("http://x", netguard.InfraSocket(filepath.Join(dir, "d", "patchbay.sock")))
		p.replicas = append(p.replicas, r)
		if err := p.serve(r); err != nil {
			return p, err
		}
	}
	if pg {
		p.db, err = sql.Open("pgx", p.pg.URL)
	} else {
		p.db, err = sql.Open("sqlite", "file:"+filepath.Join(p.replicas[0].dir, "d", "patchbay.db")+"?mode=ro&_pragma=busy_timeout(5000)")
	}
	return p, errors.Join(err, p.prepare())
}

func (p *plant) config(r *replica, database, llm string) string {
	return fmt.Sprintf(`listen: %s
data: %s/d
database: %q
limits: {run_lease: 1s, idle_timeout: 1s, header_timeout: 1s, request_timeout: 5s, calls_per_run: 50}
models: {default: {provider: openai, model: far, base_url: %q, api_key_env: FAULTS_LLM_KEY}}
agents: {general: {approvals: {mcp__far__ask: ask}}}
org: {connections: {far: {url: %q, targets: {pay: $.x, ask: $.x}}}}
egress: {allow: [{to: %q, for: [far]}]}
`, r.addr, r.dir, database, llm, p.far.Endpoint(), p.far.URL)
}

// prepare reviews the query and makes a token.
func (p *plant) prepare() error {
	var tools command.MCPTools
	if err := p.do("mcp.refresh", command.NameInput{Name: "far"}, &command.MCPTest{}); err != nil {
		return err
	}
	if err := p.do("mcp.tools", command.MCPToolsInput{Name: "far"}, &tools); err != nil {
		return err
	}
	for _, t := range tools.Tools {
		if t.Name == "look" {
			if err := p.do("mcp.classify", command.ClassifyInput{Name: "far", Tool: "look", Class: "query", Fingerprint: t.Fingerprint}, &command.MCPChanged{}); err != nil {
				return err
			}
		}
	}
	var tok command.TokenCreated
	err := p.do("tokens.create", command.TokensCreateInput{Label: "faults", Agent: "general", Me: true}, &tok)
	p.token = tok.Value
	return err
}

// serve starts a replica and waits until it answers.
func (p *plant) serve(r *replica) error {
	log, err := os.OpenFile(filepath.Join(r.dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(p.bin, "serve", "-c", r.file)
	cmd.Env, cmd.Stderr, cmd.Stdout = append(os.Environ(), r.env...), log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	r.mu.Lock()
	r.cmd = cmd
	r.mu.Unlock()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		resp, err := http.Get("http://" + r.addr + "/healthz")
		if err == nil {
			resp.Body.Close()
			return nil
		}
		if time.Now().After(end) {
			text, _ := os.ReadFile(filepath.Join(r.dir, "log"))
			return fmt.Errorf("%s did not start: %s", r.name, text[max(0, len(text)-2000):])
		}
	}
}

func (p *plant) kill(r *replica) {
	r.cmd.Process.Kill()
	r.cmd.Wait()
}

func (r *replica) signal(s syscall.Signal) { r.cmd.Process.Signal(s) }

func (p *plant) close() {
	for _, r := range p.replicas {
		if r.cmd != nil {
			r.signal(syscall.SIGCONT)
			p.kill(r)
		}
	}
	if p.db != nil {
		p.db.Close()
	}
	p.far.MCP.CloseClientConnections()
	p.far.MCP.Server.Close()
	for i := len(p.stop) - 1; i >= 0; i-- {
		p.stop[i]()
	}
}

// wire stands between a replica and PostgreSQL.
type wire struct {
	url, to string
	mu      sync.Mutex
	conns   []net.Conn
	down    bool
}

func newWire(pg string) (*wire, error) {
	u, err := url.Parse(pg)
	if err != nil {
		return nil, err
	}
	w := &wire{to: u.Host}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	u.Host = l.Addr().String()
	w.url = u.String()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go w.pass(c)
		}
	}()
	return w, nil
}

func (w *wire) pass(c net.Conn) {
	d, err := net.Dial("tcp", w.to)
	w.mu.Lock()
	if err != nil || w.down {
		w.mu.Unlock()
		c.Close()
		if err == nil {
			d.Close()
		}
		return
	}
	w.conns = append(w.conns, c, d)
	w.mu.Unlock()
	go func() { io.Copy(d, c); d.Close() }()
	io.Copy(c, d)
	c.Close()
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.down = true
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

func (w *wire) mend() { w.mu.Lock(); defer w.mu.Unlock(); w.down = false }
