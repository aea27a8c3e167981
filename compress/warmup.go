package compress

import (
	"context"

	"github.com/gradpress/gradpress/kernels"
)

// DenseFirst makes a compressor that sends everything dense for the first so many steps and then serves as one of mk. m is the momentum that the
// latter applies itself, if any: it is applied to the mean meanwhile, and handed over.
func DenseFirst(mk func(Set) (Compressor, error), m Momentum, steps int) func(Set) (Compressor, error) {
	return func(t Set) (Compressor, error) {
		c, err := mk(t)
		if err != nil {
			return nil, err
		}
		w := &warmup{then: c, parts: t.Parts, m: m, steps: uint64(steps)}
		if w.dense, err = NewDense(t, Momentum{}, kernels.F32); err != nil || w.m.M == 0 {
			return w, err
		}
		w.u, err = kernels.NewBuf[float32](t.Dev, t.Len())
		return w, err
	}
}

// warmup serves with dense and then, from a step on, with another compressor. State: that of the latter, "velocity" of the former, and
// "warmup", the steps so far.
type warmup struct {
	dense, then Compressor
	parts       []Part
	m           Momentum
	u           kernels.Buf[float32] // where m is a momentum
	step, steps uint64
}

func (w *warmup) Start(ctx context.Context, s kernels.Stream, v kernels.Buf[float32]) (Payload, error) {
	w.step++
	if w.step <= w.steps {
		return w.dense.Start(ctx, s, v)
	}
	if w.step == w.steps+1 && w.m.M != 0 {
		w.handOver(s)
	}
	return w.then.Start(ctx, s, v)
}

func (w *warmup) Next(ctx context.Context, s kernels.Stream, got Received, out kernels.Buf[float32]) (Payload, error) {
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
	mine := RememberParts(w.parts, "u", w.u)
	for _, b := range w.then.State() {
		for _, u := range mine {
			if b.Name == u.Name && b.Count == nil {
				kernels.Copy(s, b.Buf, u.Buf)
			}
		}
	}
}

func (w *warmup) State() []NamedBuf {
	all := w.then.State()
	if w.m.M != 0 {
		all = append(all, RememberParts(w.parts, "velocity", w.u)...)
	}
	for _, p := range w.parts {
		all = append(all, NamedBuf{Name: p.Name + "/warmup", Count: &w.step})
	}
	return all
}
