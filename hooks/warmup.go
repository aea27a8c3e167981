package hooks

import (
	"context"
	"fmt"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// Warmup is m, but for the first so many steps everything is sent dense. A momentum that m owns is applied to the mean meanwhile, and
// handed over to m when it takes over, if m keeps it under the name "u" as dense does. m's own schedule begins then.
func Warmup(m compress.Method, steps int) (compress.Method, error) {
	switch {
	case steps < 0:
		return m, fmt.Errorf("hooks: warm-up of %d steps, want 0 or more", steps)
	case m.Name == "dense":
		return m, fmt.Errorf("hooks: warm-up before %s: it is dense already", m.Text)
	case steps == 0:
		return m, nil
	}
	w := m
	w.Text = fmt.Sprintf("%s after %d dense steps", m.Text, steps)
	w.Warmup = steps + m.Warmup
	w.New = warmed(m, m.New, steps)
	if m.Small != nil {
		w.Small = warmed(m, m.Small, steps)
	}
	return w, nil
}

func warmed(m compress.Method, mk func(compress.Set) (compress.Compressor, error), steps int) func(compress.Set) (compress.Compressor, error) {
	return func(t compress.Set) (compress.Compressor, error) {
		c, err := mk(t)
		if err != nil {
			return nil, err
		}
		w := &warmup{then: c, parts: t.Parts, m: m.Momentum, steps: uint64(steps)}
		if w.dense, err = compress.NewDense(t, compress.Momentum{}, kernels.F32); err != nil || w.m.M == 0 {
			return w, err
		}
		w.u, err = kernels.NewBuf[float32](t.Dev, t.Len())
		return w, err
	}
}

// warmup serves with dense and then, from a step on, with another compressor. State: that of the latter, "velocity" of the former, and
// "warmup", the steps so far.
type warmup struct {
	dense, then compress.Compressor
	parts       []compress.Part
	m           compress.Momentum
	u           kernels.Buf[float32] // where m is a momentum
	step, steps uint64
}

func (w *warmup) Start(ctx context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	w.step++
	if w.step <= w.steps {
		return w.dense.Start(ctx, s, v)
	}
	if w.step == w.steps+1 && w.m.M != 0 {
		w.handOver(s)
	}
	return w.then.Start(ctx, s, v)
}

func (w *warmup) Next(ctx context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	if w.step > w.steps {
		return w.then.Next(ctx, s, got, out)
	}
	p, err := w.dense.Next(ctx, s, got, out)
	if p == nil && err == nil && w.m.M != 0 {
		kernels.Momentum(s, w.u, out, w.m.M, w.m.Nesterov)
	}
	return p, err
}

// handOver gives then the velocity of the mean; by linearity every rank's own may be the mean of all. Here V = mV + g is kept; with Nesterov
// u = m(u + g) is m times that.
func (w *warmup) handOver(s kernels.Stream) {
	if w.m.Nesterov {
		kernels.Scale(s, w.u, w.m.M)
	}
	mine := compress.RememberParts(w.parts, "u", w.u)
	for _, b := range w.then.State() {
		for _, u := range mine {
			if b.Name == u.Name && b.Count == nil {
				kernels.Copy(s, b.Buf, u.Buf)
			}
		}
	}
}

func (w *warmup) State() []compress.NamedBuf {
	all := w.then.State()
	if w.m.M != 0 {
		all = append(all, compress.RememberParts(w.parts, "velocity", w.u)...)
	}
	for _, p := range w.parts {
		all = append(all, compress.NamedBuf{Name: p.Name + "/warmup", Count: &w.step})
	}
	return all
}
