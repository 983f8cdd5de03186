package model

import (
	"context"
	"errors"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

// Embedder turns texts into vectors by an endpoint that speaks OpenAI's embeddings
// API, as many servers do.
type Embedder struct {
	service openai.EmbeddingService
	model   string
}

// NewEmbedder makes an Embedder of an endpoint.
func NewEmbedder(e Endpoint) *Embedder {
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
	return &Embedder{openai.NewEmbeddingService(opts...), e.Model}
}

// Embed returns a vector for each text.
func (e *Embedder) Embed(ctx context.Context, texts []string) ([][]float32, error) {
	res, err := e.service.New(ctx, openai.EmbeddingNewParams{Model: e.model, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: texts}})
	if err != nil {
		return nil, err
	}
	out := make([][]float32, len(texts))
	for _, d := range res.Data {
		if d.Index < 0 || int(d.Index) >= len(out) {
			return nil, errors.New("model: a vector for a text that was not sent")
		}
		v := make([]float32, len(d.Embedding))
		for i, x := range d.Embedding {
			v[i] = float32(x)
		}
		out[d.Index] = v
	}
	for _, v := range out {
		if len(v) == 0 {
			return nil, errors.New("model: a text has no vector")
		}
	}
	return out, nil
}
