package quant

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// TernGradConfig sets TernGrad. The scale is not shared by default: a rank's own is never larger, so its ternaries vary less, and it costs no
// round of its own. The paper shares it for a server that sends sums back, which a gather does not need and owners do.
type TernGradConfig struct {
	Clip       float64           `key:"clip" doc:"clip each tensor to so many standard deviations of its own; 0 is off"`
	ShareScale bool              `key:"share_scale" doc:"use the largest scale of all ranks, agreed in a round before"`
	Exchange   compress.Exchange `key:"exchange" doc:"gather every rank's ternaries, twophase through an owner of each shard, which shares the scale and hands out exact sums (up to 127 ranks), or auto: twophase from 4 ranks on"`
}

// Validate checks the range.
func (c TernGradConfig) Validate() error {
	if !(c.Clip >= 0 && c.Clip <= math.MaxFloat32) {
		return errors.New("clip must be 0 (off) or more")
	}
	return nil
}

// NewTernGrad makes TernGrad, tensor by tensor. It keeps no residual: what it sends is the clipped gradient on average. Ternaries of one scale
// have sums that a byte holds, so that owners lose nothing.
//
// State of a tensor: "step", how many exchanges there were, from which the random numbers follow.
func NewTernGrad(c TernGradConfig, t compress.Set) (compress.Compressor, error) {
	owned := c.Exchange == compress.Twophase || c.Exchange == compress.Auto && t.Size >= 4 && t.Size <= kernels.MostCounted
	if owned && t.Size > kernels.MostCounted {
		return nil, fmt.Errorf("exchange=twophase sums the ternaries of at most %d ranks, these are %d: take exchange=gather", kernels.MostCounted, t.Size)
	}
	return compress.PerPart(func(p compress.Part, t compress.Set) (compress.Compressor, error) {
		z := &ternGrad{cfg: c, draw: kernels.Draw{Rank: uint32(t.Rank), ID: p.ID, Key: kernels.Key(t.Seed)}}
		n := kernels.TernaryBytes(p.Len())
		shard := (n + t.Size - 1) / t.Size
		var errs [4]error
		z.room, errs[0] = kernels.NewBuf[uint8](t.Dev, shard*t.Size)
		z.own, errs[1] = kernels.NewBuf[float32](t.Dev, 1)
		z.shared, errs[2] = kernels.NewBuf[float32](t.Dev, 1)
		z.codes = compress.Packed{B: z.room.Slice(0, n), Full: true, Entropy: true}
		z.scale = compress.Packed{B: kernels.Bytes(z.own), Full: true}
		z.both.Of = []compress.Payload{&z.codes, &z.scale}
		if owned {
			z.cfg.ShareScale = true
			z.sums = compress.Packed{Full: true, Entropy: true}
			z.sums.B, errs[3] = kernels.NewBuf[uint8](t.Dev, 4*shard)
			for r := range t.Size {
				z.split.To = append(z.split.To, &compress.Packed{B: z.room.Slice(r*shard, (r+1)*shard), Full: true, Entropy: true})
			}
		}
		return z, errors.Join(errs[:]...)
	})(t)
}

type ternGrad struct {
	cfg          TernGradConfig
	draw         kernels.Draw
	step         uint64
	own, shared  kernels.Buf[float32] // the rank's scale, and the largest of all ranks'
	room         kernels.Buf[uint8]   // codes, and zeros that make shards equal
	codes, scale compress.Packed
	both         compress.Many // codes and scale
	v            kernels.Buf[float32]
	round        int

	// With owners.
	split compress.Split  // a shard of the codes for each rank
	sums  compress.Packed // of this rank's shard, a byte each
}

func (c *ternGrad) Start(_ context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	c.v, c.round = v, 0
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
	c.round++
	owned := len(c.split.To) > 0
	switch {
	case c.cfg.ShareScale && c.round == 1:
		kernels.Zero(s, c.shared)
		for _, scale := range got.Packed {
			kernels.MaxScale(s, c.shared, scale)
		}
		kernels.DrawTernary(s, c.codes.B, c.v, c.own, c.shared, c.draw)
		if owned {
			return &c.split, nil
		}
		return &c.codes, nil
	case owned && c.round == 2:
		kernels.Zero(s, c.sums.B)
		for _, codes := range got.Packed {
			kernels.CountTernary(s, c.sums.B, codes)
		}
		return &c.sums, nil
	}
	kernels.Zero(s, out)
	switch {
	case owned:
		n, shard := out.Len(), c.sums.B.Len()
		for r, sums := range got.Packed {
			lo, hi := min(r*shard, n), min((r+1)*shard, n)
			kernels.AddCounts(s, out.Slice(lo, hi), 1/float32(len(got.Packed)), sums.Slice(0, hi-lo), kernels.Bytes(c.shared))
		}
	case c.cfg.ShareScale:
		for _, codes := range got.Packed {
			kernels.AddTernary(s, out, 1/float32(len(got.Packed)), codes, kernels.Bytes(c.shared))
		}
	default:
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
