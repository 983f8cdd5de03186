package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"slices"
	"strings"

	"github.com/go-git/go-git/v5"
	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/format/packfile"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/capability"
	"github.com/go-git/go-git/v5/plumbing/protocol/packp/sideband"
	"github.com/go-git/go-git/v5/plumbing/transport"
	githttp "github.com/go-git/go-git/v5/plumbing/transport/http"
	"github.com/go-git/go-git/v5/storage/memory"

	"patchbay/internal/plane"
)

// Bounds of what is read of a repository.
const (
	maxPack      = 64 << 20  // bytes of one answer
	maxInflated  = 128 << 20 // bytes of all objects of the tip
	maxRepoFiles = 200
	maxDeclared  = 100 // declarations of one repository, and names that its skills want
	maxBlob      = 64  // KiB; larger files are not even fetched, where the server can filter
)

// Where a repository declares servers.
const (
	repoDir    = ".patchbay/mcp"
	repoFile   = ".mcp.json"
	skillsDir  = "skills"
	skillsFile = "SKILL.md"
)

// ReadRepository reads what the default branch of a team's repository declares, as it
// stands now: no other branch is looked at, whatever it is called. Address is https, or a
// path on this machine. Known is the commit that was read last: where it is still there,
// the snapshot is returned as it was.
func ReadRepository(ctx context.Context, known plane.RepoSnapshot, address string, client *http.Client, placeholder string, scan *Scanner) (plane.RepoSnapshot, error) {
	out := plane.RepoSnapshot{Team: known.Team, URL: address, Mark: placeholder}
	if known.Mark != placeholder {
		known.Commit = "" // what env must be has changed
	}
	var tree *object.Tree
	var err error
	if strings.HasPrefix(address, "https://") || strings.HasPrefix(address, "http://") {
		tree, err = fetch(ctx, &out, known, address, client)
	} else {
		tree, err = openLocal(&out, address)
	}
	switch {
	case err != nil:
		return known, plane.Errorf(plane.Unavailable, "The repository of %s cannot be read.", known.Team).Because(err)
	case out.Commit == known.Commit && known.URL == address:
		known.Branch = out.Branch
		return known, nil
	case tree == nil:
		return out, nil // it has no commit yet
	}
	readTree(tree, &out, placeholder, scan)
	return out, nil
}

// openLocal opens a repository on this machine. Its default branch is what its origin
// calls so, else its HEAD.
func openLocal(out *plane.RepoSnapshot, dir string) (*object.Tree, error) {
	r, err := git.PlainOpen(dir)
	if err != nil {
		return nil, err
	}
	ref, err := r.Reference(plumbing.NewRemoteHEADReferenceName("origin"), true)
	if err != nil {
		if ref, err = r.Head(); errors.Is(err, plumbing.ErrReferenceNotFound) {
			return nil, nil
		}
	}
	if err != nil {
		return nil, err
	}
	out.Branch, out.Commit = ref.Name().Short(), ref.Hash().String()
	c, err := r.CommitObject(ref.Hash())
	if err != nil {
		return nil, err
	}
	return c.Tree()
}

// fetch gets the tip of the default branch and nothing before it, into memory.
func fetch(ctx context.Context, out *plane.RepoSnapshot, known plane.RepoSnapshot, address string, client *http.Client) (*object.Tree, error) {
	ep, err := transport.NewEndpoint(address)
	if err != nil {
		return nil, err
	}
	bounded := *client
	bounded.Transport = capped{client.Transport}
	sess, err := githttp.NewClient(&bounded).NewUploadPackSession(ep, nil)
	if err != nil {
		return nil, err
	}
	defer sess.Close()
	adv, err := sess.AdvertisedReferencesContext(ctx)
	if errors.Is(err, transport.ErrEmptyRemoteRepository) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if adv.Head == nil {
		return nil, errors.New("the repository names no default branch")
	}
	refs, err := adv.AllReferences()
	if err != nil {
		return nil, err
	}
	if head, err := refs.Reference(plumbing.HEAD); err == nil && head.Type() == plumbing.SymbolicReference {
		out.Branch = head.Target().Short()
	}
	if out.Commit = adv.Head.String(); out.Commit == known.Commit && known.URL == address {
		return nil, nil
	}
	req := packp.NewUploadPackRequestFromCapabilities(adv.Capabilities)
	req.Wants = []plumbing.Hash{*adv.Head}
	if adv.Capabilities.Supports(capability.Shallow) {
		req.Depth = packp.DepthCommits(1)
		if err := req.Capabilities.Set(capability.Shallow); err != nil {
			return nil, err
		}
	}
	if adv.Capabilities.Supports(capability.Filter) {
		req.Filter = packp.FilterBlobLimit(maxBlob+1, packp.BlobLimitPrefixKibi)
		if err := req.Capabilities.Set(capability.Filter); err != nil {
			return nil, err
		}
	}
	resp, err := sess.UploadPack(ctx, req)
	if err != nil {
		return nil, err
	}
	defer resp.Close()
	st := memory.NewStorage()
	var pack io.Reader = resp
	switch {
	case req.Capabilities.Supports(capability.Sideband64k):
		pack = sideband.NewDemuxer(sideband.Sideband64k, resp)
	case req.Capabilities.Supports(capability.Sideband):
		pack = sideband.NewDemuxer(sideband.Sideband, resp)
	}
	body, err := io.ReadAll(pack)
	if err != nil {
		return nil, err
	}
	if err := weigh(ctx, body); err != nil {
		return nil, err
	}
	if err := packfile.UpdateObjectStorage(st, bytes.NewReader(body)); err != nil {
		return nil, err
	}
	c, err := object.GetCommit(st, *adv.Head)
	if err != nil {
		return nil, err
	}
	return c.Tree()
}

// capped bounds what an answer may bring.
type capped struct{ next http.RoundTripper }

func (c capped) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.next.RoundTrip(r)
	if err == nil {
		resp.Body = &cappedBody{resp.Body, maxPack}
	}
	return resp, err
}

type cappedBody struct {
	io.ReadCloser
	left int64
}

func (b *cappedBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer is larger than %d bytes", maxPack)
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// readTree reads the places where a commit declares servers. What cannot be used is told
// and takes nothing else with it.
func readTree(tree *object.Tree, out *plane.RepoSnapshot, placeholder string, scan *Scanner) {
	files := 0
	at := out.Commit[:min(len(out.Commit), 12)]
	problem := func(file, what string) {
		if len(out.Problems) < maxRepoFiles {
			out.Problems = append(out.Problems, file+": "+what)
		}
	}
	read := func(name string) ([]byte, bool) {
		if _, err := tree.FindEntry(name); err != nil {
			return nil, false
		}
		f, err := tree.File(name)
		if err != nil { // the server left out what is too large
			problem(name, fmt.Sprintf("it is larger than %d bytes, or cannot be read", maxFile))
			return nil, false
		}
		if files++; f.Size > maxFile || files > maxRepoFiles {
			problem(name, fmt.Sprintf("it is larger than %d bytes, or one of more than %d files", maxFile, maxRepoFiles))
			return nil, false
		}
		s, err := f.Contents()
		if err != nil {
			problem(name, "it cannot be read")
			return nil, false
		}
		return []byte(s), true
	}
	add := func(d plane.Declaration, layer plane.Layer, file string, err error) {
		if err == nil && d.Default {
			err = plane.Errorf(plane.InvalidInput, "default: true is the registry's to say.")
		}
		same := func(o plane.Declared) bool { return o.Name == d.Name && o.Layer == layer }
		if err == nil && slices.ContainsFunc(out.Declared, same) {
			err = plane.Errorf(plane.InvalidInput, "%s is declared by another file already.", d.Name)
		}
		if err == nil && len(out.Declared) >= maxDeclared {
			err = plane.Errorf(plane.InvalidInput, "a repository declares at most %d servers.", maxDeclared)
		}
		if err == nil && scan != nil {
			if found := scan.Declaration(&d, "", ""); len(found) > 0 {
				err = plane.Errorf(plane.InvalidInput, "%s holds %s.", d.Name, found[0].What)
			}
		}
		if err != nil {
			problem(file, plane.Public(err).Message)
			return
		}
		out.Declared = append(out.Declared, plane.Declared{Declaration: d, Layer: layer, From: file + " at " + at})
	}
	for _, name := range entries(tree, repoDir, false) {
		if ext := path.Ext(name); ext == ".yaml" || ext == ".yml" {
			if b, ok := read(name); ok {
				d, err := Parse(name, b, placeholder)
				add(d, plane.LayerRepository, name, err)
			}
		}
	}
	if b, ok := read(repoFile); ok {
		list, err := fromMCPJSON(b, placeholder)
		if err != nil {
			problem(repoFile, plane.Public(err).Message)
		}
		for _, one := range list {
			add(one.d, plane.LayerRepository, repoFile, one.err)
		}
	}
	for _, dir := range entries(tree, skillsDir, true) {
		name := dir + "/" + skillsFile
		b, ok := read(name)
		if !ok {
			continue
		}
		s, err := ReadSkill(name, b, placeholder)
		if err != nil {
			problem(name, plane.Public(err).Message)
			continue
		}
		for _, d := range s.Servers {
			add(d, plane.LayerSkill, name, nil)
		}
		for _, w := range s.Wanted {
			if len(out.Wanted) < maxDeclared && !slices.Contains(out.Wanted, w) {
				out.Wanted = append(out.Wanted, w)
			}
		}
	}
}

// entries lists what is in a directory: files, or directories.
func entries(tree *object.Tree, dir string, dirs bool) []string {
	sub, err := tree.Tree(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range sub.Entries {
		if e.Mode.IsFile() != dirs && len(out) < maxRepoFiles { // a link is a file, and read as one
			out = append(out, dir+"/"+e.Name)
		}
	}
	return out
}
