package patchbay

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "patchbay/"

// allowed is what each package may import of ours. Imports go down; what is not
// here does not exist.
var allowed = map[string]string{
	"cmd/patchbay": "app client command consent bridge egress netguard plane secret",

	"internal/app": "api authn authserver bridge catalog client command connect consent egress ingress ledger mcp model natsbus netguard oauth plane policy registry run sandbox secret slack store telemetry upstream vault web",

	// surfaces: translate, decide nothing
	"internal/api":     "command consent oauth plane registry run secret",
	"internal/web":     "authn authserver bridge catalog command connect consent plane secret",
	"internal/client":  "plane",
	"internal/ingress": "bridge command mcp plane",
	"internal/natsbus": "plane",
	"internal/slack":   "command plane run",

	// use cases: the product
	"internal/command":  "authn bridge catalog connect consent ledger plane policy registry run secret",
	"internal/consent":  "catalog connect oauth plane policy secret",
	"internal/run":      "bridge ledger model plane secret telemetry",
	"internal/bridge":   "mcp plane policy telemetry upstream",
	"internal/ledger":   "mcp plane",
	"internal/connect":  "oauth plane policy secret vault",
	"internal/upstream": "catalog connect mcp plane policy",
	"internal/catalog":  "mcp plane policy",
	"internal/registry": "plane policy",
	"internal/egress":   "connect plane policy secret",

	// rules and protocols
	"internal/policy":     "plane",
	"internal/authn":      "plane secret",
	"internal/authserver": "plane secret",
	"internal/oauth":      "plane secret",
	"internal/mcp":        "plane",
	"internal/model":      "plane secret",

	"internal/sandbox":      "plane",
	"internal/sandbox/init": "",

	// ground
	"internal/store":     "plane",
	"internal/vault":     "plane secret",
	"internal/netguard":  "plane",
	"internal/secret":    "",
	"internal/telemetry": "",
	"internal/plane":     "",

	// test only
	"internal/fake":            "mcp",
	"internal/freeport":        "",
	"internal/store/storetest": "plane store freeport",
}

// mayExpose may take a secret's text: the injectors, and what builds clients.
var mayExpose = []string{"internal/secret", "internal/connect", "internal/consent", "internal/oauth", "internal/authn", "internal/authserver", "internal/model", "internal/vault", "internal/app", "cmd/patchbay"}

// transports may make dialers and http.Transports.
var transports = []string{"internal/netguard"}

const (
	maxFileLines = 500
	maxFuncLines = 100
	maxChain     = 10
)

var bannedNames = []string{"util", "utils", "common", "helpers", "types", "core", "misc", "shared", "base"}

type pkg struct {
	dir     string
	files   map[string]*ast.File
	imports map[string]bool // ours, of files that are not tests
	doc     string
}

func load(t *testing.T) (map[string]*pkg, *token.FileSet) {
	t.Helper()
	fset := token.NewFileSet()
	out := map[string]*pkg{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && path != "." || d.Name() == "node_modules" || d.Name() == "testdata" || path == "bin") {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		dir := filepath.Dir(path)
		p := out[dir]
		if p == nil {
			p = &pkg{dir: dir, files: map[string]*ast.File{}, imports: map[string]bool{}}
			out[dir] = p
		}
		p.files[path] = f
		if f.Doc != nil {
			p.doc += f.Doc.Text()
		}
		if strings.HasSuffix(path, "_test.go") {
			return nil
		}
		for _, im := range f.Imports {
			if rest, ok := strings.CutPrefix(strings.Trim(im.Path.Value, `"`), module); ok {
				p.imports[rest] = true
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out, fset
}

func TestImportTable(t *testing.T) {
	pkgs, _ := load(t)
	for _, dir := range slices.Sorted(maps.Keys(pkgs)) {
		if !strings.HasPrefix(dir, "internal") && !strings.HasPrefix(dir, "cmd") {
			continue
		}
		list, ok := allowed[dir]
		if !ok {
			t.Errorf("%s is not in the table of imports", dir)
			continue
		}
		may := strings.Fields(list)
		for im := range pkgs[dir].imports {
			if !slices.Contains(may, strings.TrimPrefix(im, "internal/")) {
				t.Errorf("%s imports %s, which the table does not allow", dir, im)
			}
		}
		for _, m := range may {
			if !pkgs[dir].imports["internal/"+m] && pkgs["internal/"+m] == nil {
				t.Errorf("the table lets %s import %s, which does not exist", dir, m)
			}
		}
	}
}

func TestImportChain(t *testing.T) {
	pkgs, _ := load(t)
	var longest func(dir string, seen []string) []string
	memo := map[string][]string{}
	longest = func(dir string, seen []string) []string {
		if slices.Contains(seen, dir) {
			t.Fatalf("a circle: %v", append(seen, dir))
		}
		if c, ok := memo[dir]; ok {
			return c
		}
		best := []string{}
		if p := pkgs[dir]; p != nil {
			for im := range p.imports {
				if c := longest(im, append(seen, dir)); len(c) > len(best) {
					best = c
				}
			}
		}
		memo[dir] = append([]string{dir}, best...)
		return memo[dir]
	}
	if c := longest("cmd/patchbay", nil); len(c) > maxChain {
		t.Errorf("the longest chain has %d packages: %v", len(c), c)
	}
}

func TestFilesAndFunctions(t *testing.T) {
	pkgs, fset := load(t)
	for _, p := range pkgs {
		for path, f := range p.files {
			if strings.HasSuffix(path, "_templ.go") && ast.IsGenerated(f) {
				continue // its template is what people read
			}
			if n := fset.Position(f.End()).Line; n > maxFileLines {
				t.Errorf("%s has %d lines, at most %d", path, n, maxFileLines)
			}
			for _, d := range f.Decls {
				fn, ok := d.(*ast.FuncDecl)
				if !ok {
					continue
				}
				if n := fset.Position(fn.End()).Line - fset.Position(fn.Pos()).Line; n > maxFuncLines {
					t.Errorf("%s: %s has %d lines, at most %d", path, fn.Name.Name, n, maxFuncLines)
				}
				if fn.Name.Name == "init" && fn.Recv == nil {
					t.Errorf("%s has an init function", path)
				}
			}
		}
	}
}

func TestNamesAndComments(t *testing.T) {
	pkgs, _ := load(t)
	for dir, p := range pkgs {
		if slices.Contains(bannedNames, filepath.Base(dir)) {
			t.Errorf("%s says nothing by its name", dir)
		}
		if dir != "." && p.doc == "" {
			t.Errorf("%s has no package comment", dir)
		}
	}
}

// Plaintext of a secret, dialers, transports and unsafe stand only where the
// design allows them.
func TestDangerousWords(t *testing.T) {
	pkgs, fset := load(t)
	for dir, p := range pkgs {
		if !strings.HasPrefix(dir, "internal") && !strings.HasPrefix(dir, "cmd") {
			continue
		}
		for path, f := range p.files {
			if strings.HasSuffix(path, "_test.go") || dir == "internal/fake" || dir == "internal/store/storetest" {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				left, _ := sel.X.(*ast.Ident)
				at := fset.Position(sel.Pos())
				switch {
				case sel.Sel.Name == "Expose" && !slices.Contains(mayExpose, dir):
					t.Errorf("%s takes the text of a secret", at)
				case left != nil && left.Name == "http" && slices.Contains([]string{"Get", "Post", "PostForm", "Head", "DefaultClient", "DefaultTransport"}, sel.Sel.Name):
					t.Errorf("%s uses the default HTTP client", at)
				case left != nil && (left.Name == "http" && sel.Sel.Name == "Transport" || left.Name == "net" && sel.Sel.Name == "Dialer") &&
					!slices.Contains(transports, dir):
					t.Errorf("%s makes a transport or dialer of its own", at)
				}
				return true
			})
			for _, im := range f.Imports {
				if im.Path.Value == `"unsafe"` {
					t.Errorf("%s imports unsafe", path)
				}
			}
		}
	}
}

// functions are the names of all functions.
func functions(t *testing.T) map[string]bool {
	t.Helper()
	pkgs, _ := load(t)
	have := map[string]bool{}
	for _, p := range pkgs {
		for _, f := range p.files {
			for _, d := range f.Decls {
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
					have[fn.Name.Name] = true
				}
			}
		}
	}
	return have
}

// Every promise of docs/invariants.md names a test that exists.
func TestInvariantsNameTests(t *testing.T) {
	b, err := os.ReadFile("docs/invariants.md")
	if err != nil {
		t.Fatal(err)
	}
	have := functions(t)
	named := 0
	for line := range strings.SplitSeq(string(b), "\n") {
		for word := range strings.FieldsFuncSeq(line, func(r rune) bool {
			return !(r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z')
		}) {
			if strings.HasPrefix(word, "Test") || strings.HasPrefix(word, "Fuzz") {
				named++
				if !have[word] {
					t.Errorf("docs/invariants.md names %s, which is no test", word)
				}
			}
		}
	}
	if named < 9 {
		t.Errorf("only %d tests are named", named)
	}
	for i := range 9 {
		if !strings.Contains(string(b), fmt.Sprintf("\n%d. ", i+1)) {
			t.Errorf("promise %d is missing", i+1)
		}
	}
}

// Every test that a table in docs names is there.
func TestDocsNameTests(t *testing.T) {
	have := functions(t)
	named := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z][A-Za-z0-9]+\b`)
	for _, file := range []string{"docs/field-cases.md", "docs/invariants.md", "docs/performance.md"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		names := named.FindAllString(string(b), -1)
		if len(names) == 0 {
			t.Errorf("%s names no test", file)
		}
		for _, n := range names {
			if !have[n] {
				t.Errorf("%s names %s, which does not exist", file, n)
			}
		}
	}
}
