// Package telemetry sets OpenTelemetry up and holds the attribute names. It
// promises that no span carries an argument, a result or a credential: the names
// here are all that is ever set.
package telemetry

import (
	"context"
	"net/http"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Names of the semantic conventions for generative AI, 0.1. The Go package that
// held them is gone, so they stand here.
const (
	MCPMethod    = "mcp.method.name"
	MCPVersion   = "mcp.protocol.version"
	MCPSession   = "mcp.session.id"
	ToolName     = "gen_ai.tool.name"
	Operation    = "gen_ai.operation.name"
	AgentID      = "gen_ai.agent.id"
	AgentName    = "gen_ai.agent.name"
	Conversation = "gen_ai.conversation.id"
	ToolCallID   = "gen_ai.tool.call.id"
	ErrorType    = "error.type"

	Transport     = "network.transport"
	ServerAddress = "server.address"
	ServerPort    = "server.port"

	Connection = "patchbay.connection.slug"
	Bytes      = "patchbay.result.bytes"
	Turns      = "patchbay.run.turns"

	MethodToolsCall = "tools/call"
	ExecuteTool     = "execute_tool"
	InvokeAgent     = "invoke_agent"
	ErrorTool       = "tool_error"
)

// Traces is where spans go. The zero value records nothing.
type Traces struct {
	provider *sdktrace.TracerProvider
}

// NewTraces exports to an OTLP endpoint by HTTP, or nowhere when url is empty.
// client holds the dialer that may reach it.
func NewTraces(ctx context.Context, url, version string, client *http.Client) (*Traces, error) {
	if url == "" {
		return &Traces{}, nil
	}
	exp, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(url), otlptracehttp.WithHTTPClient(client))
	if err != nil {
		return nil, err
	}
	return &Traces{provider: sdktrace.NewTracerProvider(sdktrace.WithBatcher(exp),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "patchbay"), attribute.String("service.version", version))))}, nil
}

// WithProcessor records to a processor of the caller's, for tests.
func WithProcessor(p sdktrace.SpanProcessor) *Traces {
	return &Traces{provider: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(p))}
}

// Tracer returns the program's tracer.
func (t *Traces) Tracer() trace.Tracer {
	if t.provider == nil {
		return noop.NewTracerProvider().Tracer("patchbay")
	}
	return t.provider.Tracer("patchbay")
}

// Close flushes.
func (t *Traces) Close(ctx context.Context) error {
	if t.provider == nil {
		return nil
	}
	return t.provider.Shutdown(ctx)
}

// Traceparent is the W3C header of a span, for params._meta.
func Traceparent(sc trace.SpanContext) string {
	if !sc.IsValid() {
		return ""
	}
	var b strings.Builder
	b.WriteString("00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-" + sc.TraceFlags().String())
	return b.String()
}
