package eval

import (
	"context"
	"fmt"

	"github.com/gradpress/gradpress/collective"
	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// name is the method and how its means are used.
func (r Run) name() string {
	s := r.Settings
	switch {
	case s.FedAvg > 0:
		return fmt.Sprintf("fedavg K=%d", s.FedAvg)
	case s.Delay > 0 && s.Uncorrected:
		return fmt.Sprintf("%s, D=%d uncorrected", r.Method.Text, s.Delay)
	case s.Delay > 0:
		return fmt.Sprintf("%s, D=%d", r.Method.Text, s.Delay)
	}
	return r.Method.Text
}

// Fits is an error where a method cannot be trained with as s says.
func Fits(m compress.Method, s Settings) error {
	switch {
	case s.FedAvg > 0 && m.Name != "dense":
		return fmt.Errorf("fedavg averages weights, which %s cannot compress: leave it with dense", m.Text)
	case s.Delay > 0 && m.Momentum.M != 0:
		return fmt.Errorf("%s applies momentum %v itself, but with a delay gradients are applied at once and would have none: set momentum=0 in it, or take another method",
			m.Text, m.Momentum.M)
	}
	return nil
}

// averageWeights lets the weights travel as gradients do, which are clear.
func (w *replica) averageWeights(ctx context.Context) error {
	params := w.net.Params()
	for i := len(params) - 1; i >= 0; i-- {
		copy(params[i].G, params[i].W)
		if err := w.reducer.Ready(i); err != nil {
			return err
		}
	}
	if err := w.reducer.Wait(ctx); err != nil {
		return err
	}
	for _, p := range params {
		copy(p.W, p.G)
		clear(p.G)
	}
	return nil
}

// settle ends a run with late means: what is under way is let arrive, and weights and optimizer state are averaged, so that all ranks hold
// the same.
func (w *replica) settle(ctx context.Context) error {
	if w.late == nil {
		return nil
	}
	if err := w.late.Drain(); err != nil {
		return err
	}
	w.count()
	sent := w.sent
	stream, err := kernels.CPU().NewStream()
	if err != nil {
		return err
	}
	for i, p := range w.net.Params() {
		for _, x := range [][]float32{p.W, w.opt.u[i]} {
			buf, err := kernels.NewBuf[float32](kernels.CPU(), len(x))
			if err != nil {
				return err
			}
			kernels.Write(stream, buf, x)
			if err := w.seat.Data.AllReduce(ctx, stream, buf, collective.Reduction{Op: collective.Mean}); err != nil {
				return err
			}
			if err := kernels.Read(ctx, stream, x, buf); err != nil {
				return err
			}
			w.t.AllPayload += int64(4 * len(x))
		}
	}
	w.t.AllWire += w.seat.sent() - sent
	return nil
}
