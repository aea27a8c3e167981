package compress

import (
	"context"

	"github.com/gradpress/gradpress/kernels"
)

// Momentum is a momentum that a method applies itself, so that the optimizer must not. The zero value is none.
type Momentum struct {
	M        float32
	Nesterov bool
}

// NewDense sends everything: the baseline, and what serves the tensors that a method leaves alone. Where the method owns the
// momentum these get theirs here, after the mean. State: "u" with momentum, else none.
func NewDense(t Set, m Momentum, wire kernels.DType) (Compressor, error) {
	c := &dense{parts: t.Parts, m: m, linear: Linear{Wire: wire}}
	if m.M == 0 {
		return c, nil
	}
	var err error
	c.u, err = kernels.NewBuf[float32](t.Dev, t.Len())
	return c, err
}

type dense struct {
	parts  []Part
	m      Momentum
	u      kernels.Buf[float32]
	linear Linear
}

func (c *dense) Start(_ context.Context, _ kernels.Stream, v kernels.Buf[float32]) (Payload, error) {
	c.linear.X = v
	return &c.linear, nil
}

func (c *dense) Next(_ context.Context, s kernels.Stream, got Received, out kernels.Buf[float32]) (Payload, error) {
	got.Into(s, out)
	if c.m.M != 0 {
		kernels.Momentum(s, c.u, out, c.m.M, c.m.Nesterov)
	}
	Settle(s, c.linear.X, out)
	return nil, nil
}

func (c *dense) State() []NamedBuf {
	if c.m.M == 0 {
		return nil
	}
	return RememberParts(c.parts, "u", c.u)
}
