package mcp

import (
	"context"
	"encoding/json"
)

// Subscribe asks to be told, through Options.Notified, of changes of a resource,
// until Unsubscribe or Close.
func (c *Client) Subscribe(ctx context.Context, uri string) error {
	if c.era == EraLegacy {
		_, err := c.Request(ctx, MethodSubscribe, "", uriParams(uri))
		return err
	}
	c.subMu.Lock()
	defer c.subMu.Unlock()
	if c.subs == nil {
		c.subs = map[string]context.CancelFunc{}
	}
	if c.subs[uri] != nil {
		return nil
	}
	life, end := context.WithCancel(c.life)
	c.subs[uri] = end
	c.workers.Go(func() { c.listen(life, hears{}, []string{uri}) })
	return nil
}

// Unsubscribe ends what Subscribe began.
func (c *Client) Unsubscribe(ctx context.Context, uri string) error {
	if c.era == EraLegacy {
		_, err := c.Request(ctx, MethodUnsubscribe, "", uriParams(uri))
		return err
	}
	c.subMu.Lock()
	defer c.subMu.Unlock()
	if end := c.subs[uri]; end != nil {
		end()
		delete(c.subs, uri)
	}
	return nil
}

func uriParams(uri string) json.RawMessage {
	return append(appendString([]byte(`{"uri":`), uri), '}')
}
