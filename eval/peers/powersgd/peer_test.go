// Package powersgd_test holds this library's PowerSGD against PyTorch's.
package powersgd_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/all"
	"github.com/gradpress/gradpress/compress/compresstest"
	"github.com/gradpress/gradpress/kernels"
)

const (
	ranks = 2
	steps = 20
)

var parts = []compress.Part{
	compress.NewPart("conv", 16, 4, 3, 3), compress.NewPart("bias", 30), compress.NewPart("fc", 30, 40), compress.NewPart("small", 3, 4),
}

type peerPart struct {
	Name  string    `json:"name"`
	Shape []int     `json:"shape"`
	Q     []float32 `json:"q"`
}

type peerCase struct {
	Rank  int             `json:"rank"`
	Parts []peerPart      `json:"parts"`
	Grads [][][][]float32 `json:"grads"` // [step][rank][part]
}

type peerResult struct {
	Torch      string
	Mean       [][][]float32 // [step][part]
	DenseError float64       `json:"dense_error"`
}

// TestPeer needs a Python with torch: GRADPRESS_PYTHON names it.
func TestPeer(t *testing.T) {
	python := os.Getenv("GRADPRESS_PYTHON")
	if python == "" {
		t.Skip("GRADPRESS_PYTHON names no Python with torch")
	}
	for _, rank := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("rank=%d", rank), func(t *testing.T) { compare(t, python, rank) })
	}
}

func compare(t *testing.T, python string, rank int) {
	m, err := all.Methods().Parse(fmt.Sprintf("powersgd:rank=%d,residual=mean", rank))
	require.NoError(t, err)
	cluster := compresstest.NewCluster(t, m.New, kernels.CPU(), ranks, 11, parts...)
	snap, err := compress.Save(context.Background(), cluster.Streams[0], cluster.Ranks[0])
	require.NoError(t, err)
	c := peerCase{Rank: rank}
	for _, p := range parts {
		c.Parts = append(c.Parts, peerPart{p.Name, p.Shape, rowMajor(snap[p.Name+"/q"], rank)})
	}
	var ours [][]float32
	for step := range steps {
		grads := gradients(step)
		byPart := make([][][]float32, ranks)
		for r, g := range grads {
			byPart[r] = split(g)
		}
		c.Grads = append(c.Grads, byPart)
		means, _ := cluster.Step(grads)
		ours = append(ours, means[0])
	}
	theirs := runPeer(t, python, c)
	require.Len(t, theirs.Mean, steps)
	worst := map[string]float64{}
	for step, mean := range theirs.Mean {
		for i, x := range split(ours[step]) {
			worst[parts[i].Name] = max(worst[parts[i].Name], relative(x, mean[i]))
		}
	}
	for _, p := range parts {
		t.Logf("torch %s, rank %d, %d steps on %d ranks: %-5s %v largest difference %.1e of the largest element",
			theirs.Torch, rank, steps, ranks, p.Name, p.Shape, worst[p.Name])
		// Each step adds up at most 144 products an element, each rounded, and feedback carries that on.
		require.Less(t, worst[p.Name], steps*144*0x1p-24, p.Name)
	}
	t.Logf("error feedback that PyTorch keeps for tensors that it sends whole: up to %.2g", theirs.DenseError)
	for _, name := range []string{"bias/residual", "small/residual"} {
		for r, comp := range cluster.Ranks {
			s, err := compress.Save(context.Background(), cluster.Streams[r], comp)
			require.NoError(t, err)
			require.Equal(t, make([]byte, len(s[name])), s[name], "ours keeps none")
		}
	}
}

// gradients change slowly and have heavy tails, as in training.
func gradients(step int) [][]float32 {
	n := compress.Set{Parts: parts}.Len()
	all := make([][]float32, ranks)
	for r := range all {
		trend, noise := rand.New(rand.NewPCG(1, 0)), rand.New(rand.NewPCG(uint64(r), uint64(step)))
		all[r] = make([]float32, n)
		for i := range all[r] {
			x := noise.NormFloat64()
			all[r][i] = float32(trend.NormFloat64() + x*x*x/4)
		}
	}
	return all
}

func split(x []float32) (by [][]float32) {
	for _, p := range parts {
		by, x = append(by, x[:p.Len()]), x[p.Len():]
	}
	return by
}

// rowMajor reads a factor's columns, which lie end to end, row by row; none gives none.
func rowMajor(b []byte, rank int) []float32 {
	rows := len(b) / 4 / rank
	var x []float32
	for i := range rows {
		for k := range rank {
			x = append(x, math.Float32frombits(binary.LittleEndian.Uint32(b[4*(k*rows+i):])))
		}
	}
	return x
}

func relative(got, want []float32) float64 {
	worst, scale := 0.0, 0.0
	for i, w := range want {
		worst = max(worst, math.Abs(float64(got[i])-float64(w))) // max keeps a NaN
		scale = max(scale, math.Abs(float64(w)))
	}
	return worst / scale
}

func runPeer(t *testing.T, python string, c peerCase) peerResult {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in.json"), filepath.Join(dir, "out.json")
	b, err := json.Marshal(c)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(in, b, 0o600))
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	log, err := exec.CommandContext(ctx, python, "peer.py", in, out).CombinedOutput()
	require.NoError(t, err, "%s", log)
	b, err = os.ReadFile(out)
	require.NoError(t, err)
	var r peerResult
	require.NoError(t, json.Unmarshal(b, &r))
	return r
}
