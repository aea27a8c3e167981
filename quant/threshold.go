package quant

import (
	"context"
	"errors"
	"math"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// ThresholdConfig sets threshold quantisation. Tau has the gradient's unit, so that no default suits every model. 0.003 trains both kinds of
// the built-in tasks: over 150 steps a small residual network does worse with a tau of a third (outrun) and of three times that (starved);
// an LSTM over 800 steps ends within 1 % of dense perplexity from 0.001 to 0.01, at 53 to 96 times fewer bytes.
type ThresholdConfig struct {
	Tau      float64           `key:"tau" doc:"threshold, and value sent, of an entry: over 0, of the size of large entries of the gradient"`
	Exchange compress.Exchange `key:"exchange" doc:"gather every rank's entries, twophase through an owner of each segment, which gathers up to tau again, or auto: what costs fewer bytes"`
}

// Validate checks the range.
func (c ThresholdConfig) Validate() error {
	if t := float32(c.Tau); !(t > 0 && t <= math.MaxFloat32) {
		return errors.New("tau must be over 0 and within float32")
	}
	return nil
}

// NewThreshold makes threshold quantisation, tensor by tensor. It leaves what it does not send in v: wrap it in feedback. An entry sends at
// most one tau a step, so a gradient that stays above tau outruns it. An owner sums means, so that it hands out no more than one rank sends, and of an
// entry that all ranks send as much as each; one that few send waits there for more.
//
// State of a tensor: "largest", the largest magnitude that the last step left in v; beyond a few tau and growing, tau is too small.
func NewThreshold(c ThresholdConfig, t compress.Set) (compress.Compressor, error) {
	mk := func(p compress.Part, t compress.Set) (compress.Compressor, error) {
		z := &threshold{tau: float32(c.Tau)}
		z.sparse.N, z.sparse.Values, z.sparse.Agreed = p.Len(), compress.Sign, true
		var errs [5]error
		z.sparse.Idx, errs[0] = kernels.NewBuf[uint32](t.Dev, p.Len())
		z.sparse.Val, errs[1] = kernels.NewBuf[float32](t.Dev, p.Len())
		z.sparse.Len, errs[2] = kernels.NewBuf[uint32](t.Dev, 1)
		z.sparse.Scale, errs[3] = kernels.NewBuf[float32](t.Dev, 1)
		z.largest, errs[4] = kernels.NewBuf[float32](t.Dev, 1)
		return z, errors.Join(errs[:]...)
	}
	return compress.PerPart(func(p compress.Part, t compress.Set) (compress.Compressor, error) {
		first, err := mk(p, t)
		if err != nil || !byOwner(c.Exchange, t.Size) {
			return first, err
		}
		return compress.ByOwner(first, mk, p, t)
	})(t)
}

type threshold struct {
	tau     float32
	sparse  compress.Sparse
	largest kernels.Buf[float32]
}

func (c *threshold) Start(_ context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	p := &c.sparse
	kernels.TakeAbove(s, p.Idx, p.Val, p.Len, p.Scale, c.largest, v, c.tau)
	return p, nil
}

func (c *threshold) Next(_ context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	got.Into(s, out)
	return nil, nil
}

func (c *threshold) State() []compress.NamedBuf {
	return []compress.NamedBuf{compress.Remember("largest", c.largest)}
}
