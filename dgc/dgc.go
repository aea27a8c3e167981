// Package dgc holds the methods that send the largest entries: gradient dropping (Aji and Heafield, EMNLP 2017) as "topk", and Deep
// Gradient Compression (Lin et al., ICLR 2018) as "dgc", which adds momentum correction, momentum factor masking, clipping and a
// sparsity warm-up.
package dgc

import (
	"context"
	"errors"
	"math"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// TopKConfig sets gradient dropping.
type TopKConfig struct {
	Ratio    float64           `key:"ratio" doc:"share of each tensor's entries that is sent, in (0, 1]"`
	Values   compress.Values   `key:"values" doc:"how values travel: fp32, fp16, int8 (a scale a tensor) or sign (one magnitude a tensor); the loss stays behind"`
	Small    float64           `key:"small" doc:"share sent of the 1-D and tiny tensors, selected across all of them; 0 sends them dense"`
	Across   bool              `key:"across" doc:"select across all compressed tensors, which must then wait for the last of them, instead of within each"`
	Exchange compress.Exchange `key:"exchange" doc:"gather every rank's entries, twophase through an owner of each segment, which selects again, or auto: what costs fewer bytes"`
}

// Config sets DGC. Ratio is a share, so a sparsity of 99.9 % is 0.001.
type Config struct {
	Ratio    float64           `key:"ratio" doc:"share of each tensor's entries that is sent after warm-up, in (0, 1]"`
	Momentum float64           `key:"momentum" doc:"momentum, applied before compression and by nobody else, in [0, 1)"`
	Nesterov bool              `key:"nesterov" doc:"Nesterov's form of momentum"`
	Masking  bool              `key:"masking" doc:"clear the momentum of what was sent, so that it is not stale"`
	Clip     float64           `key:"clip" doc:"scale each tensor's gradient down to a norm of clip/sqrt(ranks); 0 is off"`
	Warmup   int               `key:"warmup" doc:"steps over which sparsity rises in five stages; 0 is none; eval sets a fifth of the run"`
	Values   compress.Values   `key:"values" doc:"how values travel: fp32, fp16, int8 (a scale a tensor) or sign (one magnitude a tensor); the loss stays behind"`
	Small    float64           `key:"small" doc:"share sent of the 1-D and tiny tensors, selected across all of them; 0 sends them dense"`
	Across   bool              `key:"across" doc:"select across all compressed tensors, which must then wait for the last of them, instead of within each"`
	Exchange compress.Exchange `key:"exchange" doc:"gather every rank's entries, twophase through an owner of each segment, which selects again, or auto: what costs fewer bytes"`
}

// Register adds topk and dgc with their defaults.
func Register(r *compress.Registry) {
	compress.Register(r, "topk", "gradient dropping: the largest entries, the rest later (Aji and Heafield 2017)",
		TopKConfig{Ratio: 0.001}, compress.Feedback, NewTopK)
	compress.Register(r, "dgc", "Deep Gradient Compression: top-k with momentum correction, masking, clipping and warm-up (Lin et al. 2018)",
		Config{Ratio: 0.001, Momentum: 0.9, Masking: true}, compress.Own, New)
}

// Validate checks the ranges.
func (c TopKConfig) Validate() error { return checkRatios(c.Ratio, c.Small) }

// Validate checks the ranges.
func (c Config) Validate() error {
	switch {
	case !(c.Momentum >= 0 && c.Momentum < 1):
		return errors.New("momentum must be in [0, 1)")
	case !(c.Clip >= 0):
		return errors.New("clip must be 0 (off) or more")
	case c.Warmup < 0:
		return errors.New("warmup must be 0 (none) or a number of steps")
	}
	return checkRatios(c.Ratio, c.Small)
}

func checkRatios(ratio, small float64) error {
	if !(ratio > 0 && ratio <= 1) {
		return errors.New("ratio must be in (0, 1]")
	}
	if !(small >= 0 && small <= 1) {
		return errors.New("small must be 0 (dense) or in (0, 1]")
	}
	return nil
}

// AcrossTensors tells the hook to serve all tensors as one set.
func (c TopKConfig) AcrossTensors() bool { return c.Across }

// AcrossTensors tells the hook to serve all tensors as one set.
func (c Config) AcrossTensors() bool { return c.Across }

// Pool selects across all small tensors.
func (c TopKConfig) Pool() (TopKConfig, bool) {
	c.Ratio, c.Across = c.Small, true
	return c, c.Small > 0
}

// Pool selects across all small tensors.
func (c Config) Pool() (Config, bool) {
	c.Ratio, c.Across = c.Small, true
	return c, c.Small > 0
}

// lift picks how a one-tensor algorithm serves a set.
func lift(across bool) func(func(compress.Part, compress.Set) (compress.Compressor, error)) func(compress.Set) (compress.Compressor, error) {
	if across {
		return compress.Whole
	}
	return compress.PerPart
}

// OwnMomentum tells the trainer to have none.
func (c Config) OwnMomentum() compress.Momentum {
	return compress.Momentum{M: float32(c.Momentum), Nesterov: c.Nesterov}
}

// WarmupSteps is how long sparsity rises.
func (c Config) WarmupSteps() int { return c.Warmup }

// NewTopK makes gradient dropping, one selection a tensor, or one for all where they are pooled. It leaves what it does not send in v: wrap it in feedback.
func NewTopK(c TopKConfig, t compress.Set) (compress.Compressor, error) {
	return lift(c.Across)(func(p compress.Part, t compress.Set) (compress.Compressor, error) {
		_, way, err := newSelection(&c.Ratio, c.Values, c.Exchange, p, t)
		return way, err
	})(t)
}

// newSelection makes a top-k of the share that ratio points to, and its way to the other ranks: itself where it gathers.
func newSelection(ratio *float64, values compress.Values, how compress.Exchange, p compress.Part, t compress.Set) (*topK, compress.Compressor, error) {
	mk := func(p compress.Part, t compress.Set) (compress.Compressor, error) {
		return newTopK(ratio, values, p, t)
	}
	top, err := newTopK(ratio, values, p, t)
	if err != nil || how == compress.Gather || how == compress.Auto && !ownersPay(p.Len(), keep(p.Len(), *ratio), values, t.Size) {
		return top, top, err
	}
	way, err := compress.ByOwner(top, mk, p, t)
	return top, way, err
}

// ownersPay estimates, from what all ranks know, whether going through owners sends fewer bytes than gathering.
func ownersPay(n, k int, values compress.Values, size int) bool {
	ranks := float64(size)
	segment := math.Ceil(float64(n) / ranks)
	gather := (ranks - 1) * values.ExpectedBytes(float64(n), float64(k))
	scatter := (ranks - 1) * (1 + values.ExpectedBytes(segment, float64(k)/ranks))
	handOut := (ranks - 1) * values.ExpectedBytes(segment, float64(keep(int(segment), float64(k)/float64(n))))
	return scatter+handOut < gather
}

// topK takes the k largest entries out of v.
type topK struct {
	ratio  *float64 // a warm-up changes it
	n      int
	dev    kernels.Device
	idx    kernels.Buf[uint32]
	val    kernels.Buf[float32]
	work   kernels.Buf[uint32]
	sparse compress.Sparse
}

func newTopK(ratio *float64, values compress.Values, p compress.Part, t compress.Set) (*topK, error) {
	c := &topK{ratio: ratio, n: p.Len(), dev: t.Dev}
	c.sparse = compress.Sparse{N: c.n, Full: true, Values: values}
	var errs [2]error
	c.sparse.Len, errs[0] = kernels.NewBuf[uint32](c.dev, 1)
	c.sparse.Scale, errs[1] = kernels.NewBuf[float32](c.dev, 1)
	return c, errors.Join(errs[:]...)
}

// keep is k = ceil(ratio*n), at least one of a tensor that has any.
func keep(n int, ratio float64) int { return min(n, max(1, int(math.Ceil(ratio*float64(n))))) }

// room makes the buffers hold k entries, and gives back what an earlier stage of a warm-up needed.
func (c *topK) room(k int) error {
	return errors.Join(kernels.Resize(c.dev, &c.idx, k), kernels.Resize(c.dev, &c.val, k),
		kernels.Resize(c.dev, &c.work, kernels.TopKWork(c.n, k)))
}

func (c *topK) Start(_ context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	k := keep(c.n, *c.ratio)
	if err := c.room(k); err != nil {
		return nil, err
	}
	c.sparse.Idx, c.sparse.Val = c.idx.Slice(0, k), c.val.Slice(0, k)
	p := &c.sparse
	kernels.TakeTopK(s, p.Idx, p.Val, p.Len, v, k, c.work)
	switch p.Values {
	case compress.Float16:
		kernels.RoundF16(s, v, p.Idx, p.Val, p.Len)
	case compress.Int8:
		kernels.RoundInt8(s, v, p.Idx, p.Val, p.Len, p.Scale)
	case compress.Sign:
		kernels.RoundSign(s, v, p.Idx, p.Val, p.Len, p.Scale)
	}
	return p, nil
}

func (c *topK) Next(_ context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	got.Into(s, out)
	return nil, nil
}

func (c *topK) State() []compress.NamedBuf { return nil }

// New makes DGC, selecting as NewTopK does. It keeps its own memory; the optimizer must have no momentum.
func New(c Config, t compress.Set) (compress.Compressor, error) {
	return lift(c.Across)(func(p compress.Part, t compress.Set) (compress.Compressor, error) {
		d := &dgc{cfg: c, ratio: c.Ratio, limit: float32(c.Clip / math.Sqrt(float64(t.Size)))}
		var errs [4]error
		d.top, d.way, errs[0] = newSelection(&d.ratio, c.Values, c.Exchange, p, t)
		d.u, errs[1] = kernels.NewBuf[float32](t.Dev, p.Len())
		d.v, errs[2] = kernels.NewBuf[float32](t.Dev, p.Len())
		d.norm, errs[3] = kernels.NewBuf[float64](t.Dev, 1)
		return d, errors.Join(errs[:]...)
	})(t)
}

type dgc struct {
	cfg   Config
	ratio float64 // of the step
	top   *topK
	way   compress.Compressor // of what top takes to the other ranks
	limit float32
	norm  kernels.Buf[float64]
	u, v  kernels.Buf[float32] // velocity, and accumulated velocity not yet sent
	step  uint64
	in    kernels.Buf[float32]
}

func (d *dgc) Start(ctx context.Context, s kernels.Stream, g kernels.Buf[float32]) (compress.Payload, error) {
	d.in = g
	if d.limit > 0 {
		kernels.Zero(s, d.norm)
		kernels.SumSquares(s, d.norm, g)
		kernels.ClipNorm(s, g, d.norm, d.limit)
	}
	kernels.Correct(s, d.u, d.v, g, float32(d.cfg.Momentum), d.cfg.Nesterov)
	d.ratio = Density(d.cfg.Ratio, d.step, d.cfg.Warmup)
	d.step++
	p, err := d.way.Start(ctx, s, d.v)
	if err == nil && d.cfg.Masking {
		kernels.ClearAt(s, d.u, d.top.sparse.Idx, d.top.sparse.Len)
	}
	return p, err
}

func (d *dgc) Next(ctx context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	p, err := d.way.Next(ctx, s, got, out)
	if p == nil && err == nil {
		compress.Settle(s, d.in, out)
	}
	return p, err
}

func (d *dgc) State() []compress.NamedBuf {
	return append(d.way.State(), compress.Remember("u", d.u), compress.Remember("v", d.v), compress.NamedBuf{Name: "step", Count: &d.step})
}

// stages are the densities of the paper's warm-up (section 3.3): sparsity 75, 93.75, 98.4375, 99.6, then 99.9 %.
var stages = [...]float64{0.25, 0.0625, 0.015625, 0.004, 0.001}

// Density is the share sent at a step: five equal stages over warmup steps, never below ratio, and ratio from then on.
func Density(ratio float64, step uint64, warmup int) float64 {
	if step >= uint64(warmup) {
		return ratio
	}
	return max(ratio, stages[step*uint64(len(stages))/uint64(warmup)])
}
