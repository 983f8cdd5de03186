package model

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/anthropics/anthropic-sdk-go/v2"
	"github.com/anthropics/anthropic-sdk-go/v2/option"
	"github.com/anthropics/anthropic-sdk-go/v2/packages/param"

	"patchbay/internal/plane"
	"patchbay/internal/secret"
)

// Endpoint says where a provider is and how to get there.
type Endpoint struct {
	BaseURL string // empty for the provider's own
	Model   string
	Schemas string // the subset of JSON Schema it takes; empty for the provider's own
	Key     secret.Text
	Client  *http.Client // with the one transport that reaches BaseURL
}

// AnthropicURL is the provider's own address.
const AnthropicURL = "https://api.anthropic.com"

type anthropicProvider struct {
	client anthropic.Client
	model  string
}

// NewAnthropic speaks Anthropic's Messages API.
func NewAnthropic(e Endpoint) Provider {
	if e.BaseURL == "" {
		e.BaseURL = AnthropicURL
	}
	opts := []option.RequestOption{option.WithoutEnvironmentDefaults(), option.WithBaseURL(e.BaseURL), option.WithHTTPClient(e.Client), option.WithMaxRetries(0)}
	e.Key.Expose(func(k string) {
		if k != "" {
			opts = append(opts, option.WithAPIKey(k))
		}
	})
	return &anthropicProvider{anthropic.NewClient(opts...), e.Model}
}

func (p *anthropicProvider) Schemas() string { return "anthropic" }

func (p *anthropicProvider) Describe() string { return "anthropic " + p.model }

func (p *anthropicProvider) Turn(ctx context.Context, r Request, delta func(string)) (Answer, error) {
	params := anthropic.MessageNewParams{Model: anthropic.Model(p.model), MaxTokens: maxTokens}
	if r.System != "" {
		params.System = []anthropic.TextBlockParam{{Text: r.System}}
	}
	for _, t := range r.Tools {
		params.Tools = append(params.Tools, anthropic.ToolUnionParam{OfTool: &anthropic.ToolParam{
			Name: t.Name, Description: anthropic.String(t.Description),
			InputSchema: param.Override[anthropic.ToolInputSchemaParam](t.Schema)}})
	}
	for _, m := range r.Messages {
		var blocks []anthropic.ContentBlockParamUnion
		for _, part := range m.Parts {
			switch {
			case part.ToolUse != nil:
				blocks = append(blocks, anthropic.NewToolUseBlock(part.ToolUse.ID, input(part.ToolUse.Input), part.ToolUse.Name))
			case part.Result != nil:
				blocks = append(blocks, anthropic.NewToolResultBlock(part.Result.ID, part.Result.Text, part.Result.IsError))
			case len(part.Extra) > 0:
				blocks = append(blocks, param.Override[anthropic.ContentBlockParamUnion](json.RawMessage(part.Extra)))
			case part.Text != "":
				blocks = append(blocks, anthropic.NewTextBlock(part.Text))
			}
		}
		if m.Role == "assistant" {
			params.Messages = append(params.Messages, anthropic.NewAssistantMessage(blocks...))
		} else {
			params.Messages = append(params.Messages, anthropic.NewUserMessage(blocks...))
		}
	}
	stream := p.client.Messages.NewStreaming(ctx, params)
	defer stream.Close()
	var acc anthropic.Message
	for stream.Next() {
		ev := stream.Current()
		if err := acc.Accumulate(ev); err != nil {
			return Answer{}, &Error{Sentence: "The model's answer cannot be read.", Transient: true, Cause: err}
		}
		if d, ok := ev.AsAny().(anthropic.ContentBlockDeltaEvent); ok && d.Delta.Text != "" {
			delta(d.Delta.Text)
		}
	}
	if err := stream.Err(); err != nil {
		return Answer{}, p.failed(ctx, err)
	}
	if acc.StopReason == "" {
		return Answer{}, &Error{Sentence: "The model's answer was cut off.", Transient: true}
	}
	return anthropicAnswer(&acc), nil
}

func anthropicAnswer(acc *anthropic.Message) Answer {
	a := Answer{Stop: string(acc.StopReason), Input: acc.Usage.InputTokens, Output: acc.Usage.OutputTokens}
	for _, b := range acc.Content {
		switch b.Type {
		case "text":
			a.Parts = append(a.Parts, plane.Part{Text: b.Text})
		case "tool_use":
			a.Parts = append(a.Parts, plane.Part{ToolUse: &plane.ToolUse{ID: b.ID, Name: b.Name, Input: json.RawMessage(b.Input)}})
		default:
			// Thinking and its like go back to the provider as they came.
			if raw, err := json.Marshal(b.ToParam()); err == nil {
				a.Parts = append(a.Parts, plane.Part{Extra: raw})
			}
		}
	}
	return a
}

func (p *anthropicProvider) failed(ctx context.Context, err error) error {
	var api *anthropic.Error
	if errors.As(err, &api) {
		return failure(ctx, api.StatusCode, err)
	}
	return failure(ctx, 0, err)
}
