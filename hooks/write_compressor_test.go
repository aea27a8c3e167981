package hooks_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/compresstest"
	"github.com/gradpress/gradpress/kernels"
)

type turnsConfig struct {
	K int `key:"k" doc:"parts that take turns"`
}

// turns sends another Kth of a tensor in each step. What waits for its turn is kept and added to by compress.WithFeedback.
type turns struct {
	k, block, lo, hi int
	step             uint64
	copied           kernels.Buf[float32]
	linear           compress.Linear
}

func newTurns(cfg turnsConfig, t compress.Set) (compress.Compressor, error) {
	return compress.PerPart(func(p compress.Part, t compress.Set) (compress.Compressor, error) {
		block := (p.Len() + cfg.K - 1) / cfg.K
		copied, err := kernels.NewBuf[float32](t.Dev, block)
		return &turns{k: cfg.K, block: block, copied: copied}, err
	})(t)
}

func (c *turns) Start(_ context.Context, s kernels.Stream, v kernels.Buf[float32]) (compress.Payload, error) {
	turn := int(c.step % uint64(c.k)) // the same on every rank, so that the mean of the parts is the part of the mean
	c.step, c.lo, c.hi = c.step+1, min(turn*c.block, v.Len()), min((turn+1)*c.block, v.Len())
	c.linear.X = c.copied.Slice(0, c.hi-c.lo)
	kernels.Copy(s, c.linear.X, v.Slice(c.lo, c.hi))
	kernels.Zero(s, v.Slice(c.lo, c.hi)) // take what is sent, leave the rest
	return &c.linear, nil
}

func (c *turns) Next(_ context.Context, s kernels.Stream, got compress.Received, out kernels.Buf[float32]) (compress.Payload, error) {
	kernels.Zero(s, out)
	got.Into(s, out.Slice(c.lo, c.hi)) // one round is all
	return nil, nil
}

func (c *turns) State() []compress.NamedBuf {
	return []compress.NamedBuf{{Name: "turn", Count: &c.step}}
}

func TestTurns(t *testing.T) {
	var r compress.Registry
	compress.Register(&r, "turns", "a part of each tensor in turn", turnsConfig{K: 4}, compress.Feedback, newTurns)
	m, err := r.Parse("turns:k=3")
	require.NoError(t, err)
	compresstest.Run(t, compresstest.Law{New: m.New, Owed: "residual", Contracts: true})
}
