package bridge

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"patchbay/internal/plane"
)

// maxAlias is the longest tool name that every provider takes.
const maxAlias = 64

const aliasPrefix = "mcp__"

// digestChars is the length of the suffix that tells cut or colliding names
// apart.
const digestChars = 6

// Aliases names the tools of one server: mcp__<server>__<tool>, with every
// character that providers refuse replaced by _. A name that had to be cut, or
// that is not alone after cleaning, carries a digest of the server's own name,
// so an alias depends on the tool and its namesakes, and on no order and no
// other server.
func Aliases(server string, defs []plane.Definition) map[string]string {
	out := make(map[string]string, len(defs))
	for i, a := range aliases(server, defs) {
		out[defs[i].Name] = a
	}
	return out
}

// aliases is Aliases by the definitions' order.
func aliases(server string, defs []plane.Definition) []string {
	cleaned := make([]string, len(defs))
	count := make(map[string]int, len(defs))
	for i := range defs {
		cleaned[i] = cleanName(defs[i].Name)
		count[cleaned[i]]++
	}
	for i, c := range cleaned {
		cleaned[i] = alias(server, defs[i].Name, c, count[c] > 1)
	}
	return cleaned
}

// promptAliases names prompts by the same rule.
func promptAliases(server string, prompts []extra) []string {
	count := make(map[string]int, len(prompts))
	for _, p := range prompts {
		count[cleanName(p.name)]++
	}
	out := make([]string, len(prompts))
	for i, p := range prompts {
		c := cleanName(p.name)
		out[i] = alias(server, p.name, c, count[c] > 1)
	}
	return out
}

func alias(server, name, tool string, collides bool) string {
	full := aliasPrefix + server + "__" + tool
	if len(full) <= maxAlias && (!collides || tool == name) {
		return full
	}
	sum := sha256.Sum256([]byte(name))
	suffix := "_" + hex.EncodeToString(sum[:])[:digestChars]
	if room := maxAlias - len(suffix); len(full) > room {
		full = full[:room]
	}
	return full + suffix
}

// cleanName replaces every character outside [A-Za-z0-9_-].
func cleanName(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' {
			return r
		}
		return '_'
	}, name)
}
