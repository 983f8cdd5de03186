package model

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	"github.com/openai/openai-go/v3/shared"

	"patchbay/internal/plane"
)

// OpenAIURL is the provider's own address.
const OpenAIURL = "https://api.openai.com/v1"

type openaiProvider struct {
	chat    openai.ChatService
	model   string
	schemas string
}

// NewOpenAI speaks the Chat Completions API, which many servers speak too.
func NewOpenAI(e Endpoint) Provider {
	if e.BaseURL == "" {
		e.BaseURL = OpenAIURL
	}
	opts := []option.RequestOption{option.WithBaseURL(e.BaseURL), option.WithHTTPClient(e.Client), option.WithMaxRetries(0)}
	e.Key.Expose(func(k string) {
		if k == "" {
			k = "none" // local servers want a header and do not look at it
		}
		opts = append(opts, option.WithAPIKey(k))
	})
	// The service alone: openai.NewClient would read the environment.
	if e.Schemas == "" {
		e.Schemas = "openai"
	}
	return &openaiProvider{openai.NewChatService(opts...), e.Model, e.Schemas}
}

func (p *openaiProvider) Schemas() string { return p.schemas }

func (p *openaiProvider) Describe() string { return "openai " + p.model }

func (p *openaiProvider) Turn(ctx context.Context, r Request, delta func(string)) (Answer, error) {
	params := openai.ChatCompletionNewParams{Model: shared.ChatModel(p.model),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}}
	if r.System != "" {
		params.Messages = append(params.Messages, openai.SystemMessage(r.System))
	}
	for _, t := range r.Tools {
		def, err := json.Marshal(struct {
			Name        string          `json:"name"`
			Description string          `json:"description"`
			Parameters  json.RawMessage `json:"parameters"`
		}{t.Name, t.Description, t.Schema})
		if err != nil {
			return Answer{}, &Error{Sentence: "A tool cannot be described to the model.", Cause: err}
		}
		params.Tools = append(params.Tools, openai.ChatCompletionFunctionTool(param.Override[shared.FunctionDefinitionParam](json.RawMessage(def))))
	}
	for _, m := range r.Messages {
		params.Messages = append(params.Messages, openaiMessages(m)...)
	}
	stream := p.chat.Completions.NewStreaming(ctx, params)
	defer stream.Close()
	var acc openai.ChatCompletionAccumulator
	for stream.Next() {
		chunk := stream.Current()
		if !acc.AddChunk(chunk) {
			return Answer{}, &Error{Sentence: "The model's answer cannot be read.", Transient: true}
		}
		if len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != "" {
			delta(chunk.Choices[0].Delta.Content)
		}
	}
	if err := stream.Err(); err != nil {
		var api *openai.Error
		if errors.As(err, &api) {
			return Answer{}, failure(ctx, api.StatusCode, err)
		}
		return Answer{}, failure(ctx, 0, err)
	}
	if len(acc.Choices) == 0 || acc.Choices[0].FinishReason == "" {
		return Answer{}, &Error{Sentence: "The model's answer was cut off.", Transient: true}
	}
	return openaiAnswer(&acc), nil
}

// openaiMessages writes one message of ours: each tool result is a message of
// its own there.
func openaiMessages(m plane.Message) []openai.ChatCompletionMessageParamUnion {
	var out []openai.ChatCompletionMessageParamUnion
	if m.Role != "assistant" {
		for _, part := range m.Parts {
			switch {
			case part.Result != nil:
				text := part.Result.Text
				if part.Result.IsError {
					text = "The call failed.\n" + text // there is no field for it
				}
				out = append(out, openai.ToolMessage(text, part.Result.ID))
			case part.Text != "":
				out = append(out, openai.UserMessage(part.Text))
			}
		}
		return out
	}
	var msg openai.ChatCompletionAssistantMessageParam
	text := ""
	for _, part := range m.Parts {
		text += part.Text
		if part.ToolUse != nil {
			args := string(part.ToolUse.Input)
			if args == "" {
				args = "{}"
			}
			msg.ToolCalls = append(msg.ToolCalls, openai.ChatCompletionMessageToolCallUnionParam{OfFunction: &openai.ChatCompletionMessageFunctionToolCallParam{
				ID: part.ToolUse.ID, Function: openai.ChatCompletionMessageFunctionToolCallFunctionParam{Name: part.ToolUse.Name, Arguments: args}}})
		}
	}
	if text != "" {
		msg.Content.OfString = openai.String(text)
	}
	return append(out, openai.ChatCompletionMessageParamUnion{OfAssistant: &msg})
}

func openaiAnswer(acc *openai.ChatCompletionAccumulator) Answer {
	choice := acc.Choices[0]
	a := Answer{Stop: choice.FinishReason, Input: acc.Usage.PromptTokens, Output: acc.Usage.CompletionTokens}
	if choice.Message.Content != "" {
		a.Parts = append(a.Parts, plane.Part{Text: choice.Message.Content})
	}
	for _, tc := range choice.Message.ToolCalls {
		a.Parts = append(a.Parts, plane.Part{ToolUse: &plane.ToolUse{ID: tc.ID, Name: tc.Function.Name, Input: toolInput(tc.Function.Arguments)}})
	}
	return a
}

// toolInput takes the arguments as the model wrote them. Text that is no JSON
// is kept as a JSON string, which the bridge refuses with a sentence.
func toolInput(args string) json.RawMessage {
	if args == "" {
		return json.RawMessage(`{}`)
	}
	if json.Valid([]byte(args)) {
		return json.RawMessage(args)
	}
	quoted, err := json.Marshal(args)
	if err != nil {
		return json.RawMessage(`null`)
	}
	return quoted
}
