package bridge

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What the flat form lets pass, the whole check lets pass too.
func TestFlatPassesNoMore(t *testing.T) {
	kinds := []string{"string", "integer", "number", "boolean"}
	values := []string{`"x"`, `1`, `-3`, `1.5`, `1e2`, `1.0`, `true`, `false`, `null`, `{}`, `[]`, `12345678901234567890`}
	passed := 0
	rapid.Check(t, func(r *rapid.T) {
		var props, required, args []string
		for _, n := range []string{"a", "b", "c"} {
			if rapid.Bool().Draw(r, "prop") {
				props = append(props, fmt.Sprintf(`%q:{"type":%q,"description":"d"}`, n, rapid.SampledFrom(kinds).Draw(r, "kind")))
			}
			if rapid.Bool().Draw(r, "required") {
				required = append(required, fmt.Sprintf("%q", n))
			}
			if rapid.Bool().Draw(r, "given") {
				args = append(args, fmt.Sprintf("%q:%s", n, rapid.SampledFrom(values).Draw(r, "value")))
			}
		}
		schema := fmt.Sprintf(`{"type":"object","properties":{%s},"required":[%s],"additionalProperties":%v}`, strings.Join(props, ","), strings.Join(required, ","), rapid.Bool().Draw(r, "open"))
		given := json.RawMessage("{" + strings.Join(args, ",") + "}")
		c := compile(json.RawMessage(schema))
		if c.flat == nil {
			r.Fatalf("%s is plain", schema)
		}
		if !c.flat.fits(given) {
			return
		}
		passed++
		c.flat = nil
		if faults := c.check(given); len(faults) > 0 {
			r.Fatalf("%s fits %s: %v", given, schema, faults)
		}
	})
	if passed == 0 {
		t.Error("nothing passed")
	}
	for _, more := range []string{`"minLength":1`, `"enum":["x"]`, `"format":"date"`, `"pattern":"x"`, `"const":"x"`} {
		if flatten(json.RawMessage(`{"type":"object","properties":{"a":{"type":"string",`+more+`}}}`)) != nil {
			t.Errorf("%s is not plain", more)
		}
	}
}
