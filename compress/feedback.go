package compress

import (
	"context"

	"github.com/gradpress/gradpress/kernels"
)

// WithFeedback remembers what c did not send and adds it to the next step's gradient (error feedback). State: "residual".
func WithFeedback(c Compressor, t Set) (Compressor, error) {
	acc, err := kernels.NewBuf[float32](t.Dev, t.Len())
	return &feedback{Compressor: c, parts: t.Parts, acc: acc}, err
}

type feedback struct {
	Compressor
	parts  []Part
	acc, v kernels.Buf[float32]
}

func (f *feedback) Start(ctx context.Context, s kernels.Stream, v kernels.Buf[float32]) (Payload, error) {
	f.v = v
	kernels.Add(s, f.acc, 1, v)
	return f.Compressor.Start(ctx, s, f.acc) // which leaves the residual in acc
}

func (f *feedback) Next(ctx context.Context, s kernels.Stream, got Received, out kernels.Buf[float32]) (Payload, error) {
	p, err := f.Compressor.Next(ctx, s, got, out)
	if p == nil && err == nil {
		Settle(s, f.v, out)
	}
	return p, err
}

func (f *feedback) State() []NamedBuf {
	return append(f.Compressor.State(), RememberParts(f.parts, "residual", f.acc)...)
}

// Settle ends the step of a compressor that keeps its own memory: nothing is owed in v, unless v has become the result.
func Settle(s kernels.Stream, v, out kernels.Buf[float32]) {
	if !v.Same(out) {
		kernels.Zero(s, v)
	}
}
