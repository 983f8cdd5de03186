package plane

import (
	"strconv"
	"strings"
	"time"
)

// Rate is so many calls in a time. The zero value bounds nothing.
type Rate struct {
	Calls int
	Per   time.Duration
}

// ParseRate reads "60/m": calls a second (s), a minute (m) or an hour (h).
func ParseRate(text string) (Rate, error) {
	n, unit, ok := strings.Cut(text, "/")
	calls, err := strconv.Atoi(strings.TrimSpace(n))
	per := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[strings.TrimSpace(unit)]
	if !ok || err != nil || calls < 1 || calls > 1_000_000 || per == 0 {
		return Rate{}, Errorf(InvalidInput, "%q is no rate: write calls per s, m or h, as in 60/m.", text)
	}
	return Rate{calls, per}, nil
}

// String is the rate as it is written.
func (r Rate) String() string {
	unit := map[time.Duration]string{time.Second: "s", time.Minute: "m", time.Hour: "h"}[r.Per]
	return strconv.Itoa(r.Calls) + "/" + unit
}

// Throttle bounds the calls of an agent or at a connection, at each replica.
type Throttle struct {
	InFlight int // 0 for the default of its kind
	Rate     Rate
	Tools    []ToolRate // of a connection
}

// ToolRate bounds the tools that a glob names, each by itself.
type ToolRate struct {
	Tool string
	Rate Rate
}
