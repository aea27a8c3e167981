package dgc_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/compresstest"
	"github.com/gradpress/gradpress/dgc"
	"github.com/gradpress/gradpress/kernels"
)

func newMethod(t *testing.T, text string) func(compress.Set) (compress.Compressor, error) {
	var r compress.Registry
	dgc.Register(&r)
	m, err := r.Parse(text)
	require.NoError(t, err)
	return m.New
}

func TestLaws(t *testing.T) {
	for text, owed := range map[string]string{
		"topk":                                    "residual",
		"topk:ratio=0.3":                          "residual",
		"dgc:ratio=0.01,warmup=5":                 "",
		"dgc:ratio=0.05,nesterov=true":            "",
		"dgc:ratio=0.05,masking=false,clip=2":     "",
		"topk:ratio=0.05,values=fp16":             "residual",
		"topk:ratio=0.05,values=int8":             "residual",
		"dgc:ratio=0.05,momentum=0,values=sign":   "v",
		"dgc:ratio=0.01,momentum=0,warmup=4":      "v",
		"dgc:ratio=0.75,momentum=0,nesterov=true": "v",
	} {
		full := text == "topk" || text == "dgc:ratio=0.01,momentum=0,warmup=4"
		t.Run(text, func(t *testing.T) {
			compresstest.Run(t, compresstest.Law{New: newMethod(t, text), Owed: owed, Variant: !full})
		})
	}
}

// A pool selects across its tensors: a large entry in one takes the place of a small one in another, and state stays with the tensors.
func TestPool(t *testing.T) {
	var r compress.Registry
	dgc.Register(&r)
	for text, owed := range map[string]string{"topk:small=0.1,values=int8": "residual", "dgc:small=0.02,momentum=0": "v", "dgc:small=0.1,warmup=2,exchange=twophase": ""} {
		m, err := r.Parse(text)
		require.NoError(t, err)
		t.Run(text, func(t *testing.T) { compresstest.Run(t, compresstest.Law{New: m.Small, Owed: owed, Variant: true}) })
	}
	m, err := r.Parse("topk:small=0.25")
	require.NoError(t, err)
	c := compresstest.NewCluster(t, m.Small, kernels.CPU(), 1, 0, compress.NewPart("a", 4), compress.NewPart("b", 4))
	means, _ := c.Step([][]float32{{1, 2, 9, 3, 0.5, 8, 0.1, 0.2}})
	require.Equal(t, []float32{0, 0, 9, 0, 0, 8, 0, 0}, means[0])
	means, _ = c.Step([][]float32{{0, 0, 0, 0, 0, 0, 0, 0}})
	require.Equal(t, []float32{0, 2, 0, 3, 0, 0, 0, 0}, means[0])
	for text, want := range map[string]string{"topk:small=2": "small", "dgc:small=-1": "small", "dgc:values=int4": "fp32, fp16, int8, sign"} {
		_, err := r.Parse(text)
		require.ErrorContains(t, err, want)
	}
	m, err = r.Parse("topk")
	require.NoError(t, err)
	require.Nil(t, m.Small)
}

// Through owners what went in still comes out or is owed, by a rank or by an owner.
func TestLawsThroughOwners(t *testing.T) {
	for text, owed := range map[string]string{
		"topk:ratio=0.05,exchange=twophase":                      "residual",
		"topk:ratio=0.1,exchange=twophase,values=int8":           "residual",
		"dgc:ratio=0.05,momentum=0,warmup=3,exchange=twophase":   "v",
		"dgc:ratio=0.05,exchange=auto,nesterov=true,values=sign": "",
	} {
		t.Run(text, func(t *testing.T) {
			compresstest.Run(t, compresstest.Law{New: newMethod(t, text), Owed: owed, Owners: owed != "", Variant: !strings.HasPrefix(text, "dgc:ratio=0.05,momentum=0")})
		})
	}
}

// Owners select again with the ratio of the step, which warm-up changes.
func TestOwnersFollowTheWarmup(t *testing.T) {
	const n = 4000
	c := compresstest.NewCluster(t, newMethod(t, "dgc:ratio=0.001,warmup=5,exchange=twophase"), kernels.CPU(), 4, 0, compress.NewPart("w", n))
	for step, want := range []float64{0.25, 0.0625, 0.015625, 0.004, 0.001, 0.001} {
		means, _ := c.Step(compresstest.Gradients(rand.New(rand.NewPCG(1, uint64(step))), 0, 4, n))
		sent := 0
		for _, x := range means[0] {
			if x != 0 {
				sent++
			}
		}
		require.InDelta(t, want*n, sent, 4, "step %d: each of four owners hands out its share, rounded up", step)
	}
}

func TestDensity(t *testing.T) {
	for _, c := range []struct {
		ratio  float64
		step   uint64
		warmup int
		want   float64
	}{
		{0.001, 0, 0, 0.001}, {0.001, 0, 100, 0.25}, {0.001, 19, 100, 0.25}, {0.001, 20, 100, 0.0625}, {0.001, 40, 100, 0.015625},
		{0.001, 60, 100, 0.004}, {0.001, 80, 100, 0.001}, {0.001, 100, 100, 0.001}, {0.001, 1 << 60, 100, 0.001},
		{0.01, 80, 100, 0.01}, {0.0001, 99, 100, 0.001}, {0.0001, 100, 100, 0.0001}, {0.5, 0, 100, 0.5}, {0.001, 2, 3, 0.004},
	} {
		require.Equal(t, c.want, dgc.Density(c.ratio, c.step, c.warmup), "%+v", c)
	}
}

func TestBadSettings(t *testing.T) {
	var r compress.Registry
	dgc.Register(&r)
	for text, want := range map[string]string{
		"topk:ratio=0": "(0, 1]", "topk:ratio=1.01": "(0, 1]", "topk:ratio=-1": "(0, 1]", "dgc:ratio=0": "(0, 1]",
		"dgc:momentum=1": "[0, 1)", "dgc:momentum=-0.1": "[0, 1)", "dgc:clip=-1": "clip", "dgc:warmup=-1": "warmup",
		"topk:momentum=0.9": "ratio",
	} {
		_, err := r.Parse(text)
		require.ErrorContains(t, err, want, text)
	}
	m, err := r.Parse("dgc:momentum=0.7,nesterov=true")
	require.NoError(t, err)
	require.Equal(t, compress.Momentum{M: 0.7, Nesterov: true}, m.Momentum)
}
