package all_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/compress/compresstest"
	"github.com/gradpress/gradpress/kernels"
)

// golden is a worked case. Everything is indexed [step][rank][element]; mean lacks the rank.
type golden struct {
	Name, Algorithm string
	Config          map[string]any
	Shape           []int
	Ranks, Steps    int
	Grads           [][][]float32
	Mean            [][]float64
	Owed, Velocity  [][][]float64
	Indices         [][][]uint32
	Q0              []float64   // the first Q; factors are row-major
	Q               [][]float64 // [step][element], as the next step starts from it
	Sent            [][][]int   // entry i as i for plus, -i-1 for minus

	draws struct { // where numbers are drawn, exactly as a float64 would not hold them
		Config struct {
			Seed   uint64
			Tensor *uint32
		}
	}
}

// TestGolden runs the worked cases of testdata, or of the folder that GRADPRESS_GOLDEN names.
func TestGolden(t *testing.T) {
	dir := os.Getenv("GRADPRESS_GOLDEN")
	if dir == "" {
		dir = "testdata/golden"
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.json"))
	require.NoError(t, err)
	ran := 0
	for _, f := range files {
		var g golden
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, &g), f)
		require.NoError(t, json.Unmarshal(b, &g.draws), f)
		t.Run(g.Name, func(t *testing.T) {
			m, err := all.Methods().Parse(g.method())
			if err != nil {
				t.Skipf("no method for %s %v: %v", g.Algorithm, g.Config, err)
			}
			ran++
			for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()} {
				g.check(t, m, dev)
			}
		})
	}
	require.NotZero(t, ran, "no case in %s could run", dir)
}

func (g *golden) method() string {
	text, sep := g.Algorithm, ":"
	for _, key := range []string{"ratio", "momentum", "nesterov", "masking", "clip", "rank", "residual", "warm_start", "group", "tau", "share_scale"} {
		if v, ok := g.Config[key]; ok {
			text += sep + key + "=" + fmt.Sprint(v)
			sep = ","
		}
	}
	switch g.Algorithm {
	case "powersgd":
		text += sep + "rate=0.01" // the cases are smaller than is worth it
	case "onebit":
		text += sep + "exchange=gather" // they quantise once
	}
	return text
}

func (g *golden) check(t *testing.T, m compress.Method, dev kernels.Device) {
	part := compress.NewPart("w", g.Shape...)
	if id := g.draws.Config.Tensor; id != nil {
		part.ID = *id
	}
	c := compresstest.NewCluster(t, m.New, dev, g.Ranks, g.draws.Config.Seed, part)
	if g.Q0 != nil {
		g.restoreQ(t, c)
	}
	for step := range g.Steps {
		means, _ := c.Step(g.Grads[step])
		for r := range g.Ranks {
			at := fmt.Sprintf("%s, step %d, rank %d", dev.Name(), step, r)
			near(t, g.Mean[step], means[r], "mean, "+at)
			owed := c.State("residual")
			if g.Velocity != nil {
				owed = c.State("v")
				near(t, g.Velocity[step][r], c.State("u")[r], "velocity, "+at)
			}
			if g.Owed[step] != nil {
				near(t, g.Owed[step][r], owed[r], "owed, "+at)
			}
			if g.Sent != nil {
				require.Equal(t, indices(g.Sent[step][r]), c.Sent[r], "indices, "+at)
			}
			if g.Indices != nil {
				require.Equal(t, g.Indices[step][r], c.Sent[r], "indices, "+at)
			}
			if g.Q != nil {
				near(t, columns(g.Q[step], g.rank()), c.State("q")[r], "Q, "+at)
			}
		}
	}
}

// indices are those of signed entries, whose signs the means show.
func indices(sent []int) []uint32 {
	var idx []uint32
	for _, i := range sent {
		idx = append(idx, uint32(max(i, -i-1)))
	}
	return idx
}

func (g *golden) rank() int { return int(g.Config["rank"].(float64)) }

// restoreQ makes every rank start from the case's first Q.
func (g *golden) restoreQ(t *testing.T, c *compresstest.Cluster) {
	ctx := context.Background()
	var q []byte
	for _, x := range columns(g.Q0, g.rank()) {
		q = binary.LittleEndian.AppendUint32(q, math.Float32bits(float32(x)))
	}
	for r, comp := range c.Ranks {
		snap, err := compress.Save(ctx, c.Streams[r], comp)
		require.NoError(t, err)
		snap["w/q0"], snap["w/q"] = q, q
		require.NoError(t, compress.Restore(ctx, c.Streams[r], comp, snap))
	}
}

// columns lays the columns of a row-major factor end to end.
func columns(x []float64, rank int) []float64 {
	y := make([]float64, 0, len(x))
	for k := range rank {
		for i := k; i < len(x); i += rank {
			y = append(y, x[i])
		}
	}
	return y
}

// near is max|a-b| <= 1e-5 max|b|, the definition of right.
func near(t *testing.T, want []float64, got []float32, what string) {
	t.Helper()
	require.Len(t, got, len(want), what)
	worst, scale := 0.0, 0.0
	for i := range want {
		worst = max(worst, math.Abs(want[i]-float64(got[i])))
		scale = max(scale, math.Abs(want[i]))
		require.False(t, got[i] != got[i], what)
	}
	require.LessOrEqual(t, worst, 1e-5*scale, what)
}
