package quant

import (
	"context"
	"errors"
	"math"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// TernGradConfig sets TernGrad. The scale is not shared by default: a rank's own is never larger, so its ternaries vary less, and it costs no
// round of its own. The paper shares it for a server that sends sums back, which a gather does not need.
type TernGradConfig struct {
	Clip       float64 `key:"clip" doc:"clip each tensor to so many standard deviations of its own; 0 is off"`
	ShareScale bool    `key:"share_scale" doc:"use the largest scale of all ranks, agreed in a round before"`
}

// Validate checks the range.
func (c TernGradConfig) Validate() error {
	if !(c.Clip >= 0 && c.Clip <= math.MaxFloat32) {
		return errors.New("clip must be 0 (off) or more")
	}
	return nil
}

// NewTernGrad makes TernGrad, tensor by tensor. It keeps no residual: what it sends is the clipped gradient on average.
//
// State of a tensor: "step", how many exchanges there were, from which the random numbers follow.
func NewTernGrad(c TernGradConfig, t compress.Set) (compress.Compressor, error) {
	return compress.PerPart(func(p compress.Part, t compress.Set) (compress.Compressor, error) {
		z := &ternGrad{cfg: c, draw: kernels.Draw{Rank: uint32(t.Rank), ID: p.ID, Key: kernels.Key(t.Seed)}}
		var errs [3]error
		z.codes.B, errs[0] = kernels.NewBuf[uint8](t.Dev, kernels.TernaryBytes(p.Len()))
		z.own, errs[1] = kernels.NewBuf[float32](t.Dev, 1)
		z.shared, errs[2] = kernels.NewBuf[float32](t.Dev, 1)
		z.codes.Full, z.codes.Entropy = true, true
		z.scale.B, z.scale.Full = kernels.Bytes(z.own), true
		z.both.Of = []compress.Payload{&z.codes, &z.scale}
		return z, errors.Join(errs[:]...)
	})(t)
}

type ternGrad struct {
	cfg          TernGradConfig
	draw         kernels.Draw
	step         uint64
	own, shared  kernels.Buf[float32] // the rank's scale, and the largest of all ranks'
	codes, scale compress.Packed
	both         compress.Many // codes and scale
	v            kernels.Buf[float32]
	agreed       bool // shared is known
}

func (c *ternGrad) Start(_ context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	c.v, c.agreed = v, false
	c.draw.Step = uint32(c.step)
	c.step++
	kernels.TernaryScale(s, c.own, v, float32(c.cfg.Clip))
	if c.cfg.ShareScale {
		return &c.scale, nil
	}
	kernels.DrawTernary(s, c.codes.B, v, c.own, c.own, c.draw)
	return &c.both, nil
}

func (c *ternGrad) Next(_ context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	if c.cfg.ShareScale && !c.agreed {
		c.agreed = true
		kernels.Zero(s, c.shared)
		for _, scale := range got.Packed {
			kernels.MaxScale(s, c.shared, scale)
		}
		kernels.DrawTernary(s, c.codes.B, c.v, c.own, c.shared, c.draw)
		return &c.codes, nil
	}
	kernels.Zero(s, out)
	if c.cfg.ShareScale {
		for _, codes := range got.Packed {
			kernels.AddTernary(s, out, 1/float32(len(got.Packed)), codes, kernels.Bytes(c.shared))
		}
	} else {
		codes, scales := got.Many[0].Packed, got.Many[1].Packed
		for r := range codes {
			kernels.AddTernary(s, out, 1/float32(len(codes)), codes[r], scales[r])
		}
	}
	compress.Settle(s, c.v, out)
	return nil, nil
}

func (c *ternGrad) State() []compress.NamedBuf {
	return []compress.NamedBuf{{Name: "step", Count: &c.step}}
}
