package compresstest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/kernels"
)

// Law says what is to be expected of a method.
type Law struct {
	New func(compress.Set) (compress.Compressor, error)
	// Owed names the state that holds what this rank has not sent yet. Then what went in must equal what came out and what is owed,
	// averaged over ranks. Empty where that does not apply.
	Owed string
	// Owners says that beside this the owner of each segment of a tensor owes a mean, in "owner".
	Owners bool
	// Contracts says that what is owed after a step is never longer than the gradient and what was owed before, together.
	Contracts bool
	// Linear says that the mean of payloads is the payload of the mean: N ranks get what one rank with the mean gradient would.
	Linear bool
	// Variant is set for settings of a method that has passed in full: fewer ranks and lengths then do.
	Variant bool
}

var (
	sizes   = []int{1, 2, 3, 4, 7}
	lengths = []int{0, 1, 7, 8, 9, 1000, 4097}
)

// Run checks every law on both devices, 1 to 7 ranks, and sets of two tensors: a vector of some length and a matrix of three such rows.
func Run(t *testing.T, law Law) {
	sizes, lengths := sizes, lengths
	if law.Variant {
		sizes, lengths = []int{1, 3}, []int{0, 1, 9, 1000}
	}
	for _, size := range sizes {
		for _, n := range lengths {
			parts := []compress.Part{compress.NewPart("vector", n), compress.NewPart("matrix", 3, n)}
			t.Run(fmt.Sprintf("ranks=%d/n=%d", size, n), func(t *testing.T) {
				k := kit{law, size, parts, nil}
				for step := range steps {
					k.grads = append(k.grads, Gradients(rand.New(rand.NewPCG(7, uint64(step))), step, size, 4*n))
				}
				k.conserves(t)
				k.replays(t)
				k.survives(t)
				if law.Linear {
					k.isLinear(t)
				}
			})
		}
	}
	t.Run("RestoreRefuses", func(t *testing.T) { restoreRefuses(t, law) })
	t.Run("ComesBack", func(t *testing.T) { comesBack(t, law) })
}

type kit struct {
	law   Law
	size  int
	parts []compress.Part
	grads [][][]float32 // [step][rank]
}

func (k kit) cluster(t *testing.T, dev kernels.Device) *Cluster {
	return NewCluster(t, k.law.New, dev, k.size, 42, k.parts...)
}

// Gradients draws heavy-tailed gradients for every rank, as gradients are, with a zero step among them.
func Gradients(rng *rand.Rand, step, ranks, n int) [][]float32 {
	g := make([][]float32, ranks)
	for r := range g {
		g[r] = make([]float32, n)
		if step == 2 {
			continue
		}
		for i := range g[r] {
			x := float32(rng.NormFloat64())
			g[r][i] = x * x * x
		}
	}
	return g
}

const steps = 5

// run returns every rank's mean at every step.
func run(c *Cluster, grads [][][]float32) [][][]float32 {
	var all [][][]float32
	for _, g := range grads {
		means, _ := c.Step(g)
		all = append(all, means)
	}
	return all
}

// conserves: what went in = what came out + what is owed, on average over ranks; every rank holds the same bits; all is finite; and
// nothing is left in v.
func (k kit) conserves(t *testing.T) {
	c := k.cluster(t, kernels.CPU())
	in, out, mass := make([]float64, c.n), make([]float64, c.n), make([]float64, c.n)
	var owed [][]float32
	for step, g := range k.grads {
		means, left := c.Step(g)
		for r := range means {
			for i := range in {
				switch x := means[r][i]; {
				case math.Float32bits(x) != math.Float32bits(means[0][i]):
					t.Fatalf("step %d, element %d: rank %d has %v, rank 0 has %v", step, i, r, x, means[0][i])
				case x-x != 0:
					t.Fatalf("step %d, element %d is %v", step, i, x)
				case left[r][i] != 0:
					t.Fatalf("step %d, element %d: v still holds %v", step, i, left[r][i])
				}
				in[i] += float64(g[r][i]) / float64(k.size)
				mass[i] += math.Abs(float64(g[r][i]))
			}
		}
		for i := range out {
			out[i] += float64(means[0][i])
		}
		if k.law.Owed != "" {
			owed = k.owes(t, c, g, owed, mass)
		}
	}
	if k.law.Owed == "" {
		return
	}
	for _, owed := range owed {
		require.Len(t, owed, c.n)
		for i, x := range owed {
			out[i] += float64(x) / float64(k.size)
		}
	}
	if k.law.Owners {
		at := 0
		for _, p := range k.parts {
			i := 0
			for r := range c.Ranks { // segment after segment, the last ones padded
				for _, x := range c.PartState(r, p.Name+"/owner") {
					if i < p.Len() {
						out[at+i] += float64(x)
					}
					i++
				}
			}
			at += p.Len()
		}
	}
	for i := range in {
		// One rounding an addition, steps x ranks of them, and a few more where values are scaled by 1/N; each at most half an ulp
		// of the largest partial sum. What is sent is what was there less what is owed, so that mass bounds it too.
		tol := float64(steps*(k.size+4)) * 0x1p-24 * mass[i]
		if k.law.Owners {
			tol *= 2 // everything is rounded twice
		}
		if !(math.Abs(in[i]-out[i]) <= tol) {
			t.Fatalf("element %d: %v went in, %v came out or is owed", i, in[i], out[i])
		}
	}
}

// owes returns what every rank owes after a step with gradients g, was having been owed before. It adds its magnitudes to mass, and checks
// that it contracts where the law says so.
func (k kit) owes(t *testing.T, c *Cluster, g, was [][]float32, mass []float64) [][]float32 {
	owed := c.State(k.law.Owed)
	for r := range owed {
		require.Len(t, owed[r], c.n)
		var before, after float64
		for i, x := range owed[r] {
			mass[i] += 3 * math.Abs(float64(x))
			v := float64(g[r][i])
			if was != nil {
				v += float64(was[r][i])
			}
			before, after = before+v*v, after+float64(x)*float64(x)
		}
		if k.law.Contracts && !(after <= before*(1+0x1p-20)) { // of a few roundings of 2^-24 each, squared
			t.Fatalf("rank %d: of a vector of length %v it still owes one of length %v", r, math.Sqrt(before), math.Sqrt(after))
		}
	}
	return owed
}

// replays: the same seed and gradients give the same bits, again, on the other device, and when the result replaces the gradient.
func (k kit) replays(t *testing.T) {
	want := run(k.cluster(t, kernels.CPU()), k.grads)
	require.Equal(t, want, run(k.cluster(t, kernels.CPU()), k.grads), "a second run differs")
	require.Equal(t, want, run(k.cluster(t, kernels.Lazy()), k.grads), "the blind, lazy device differs: is there a Sync missing?")
	for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()} {
		c := k.cluster(t, dev)
		c.InPlace = true
		require.Equal(t, want, run(c, k.grads), "in place differs on %s", dev.Name())
	}
}

// survives: state that is saved and restored into fresh compressors goes on with the same bits.
func (k kit) survives(t *testing.T) {
	ctx := context.Background()
	want := run(k.cluster(t, kernels.CPU()), k.grads)
	for at, dev := range map[int]kernels.Device{1: kernels.Lazy(), 3: kernels.CPU()} {
		a, b := k.cluster(t, dev), k.cluster(t, dev)
		run(a, k.grads[:at])
		for r := range a.Ranks {
			snap, err := compress.Save(ctx, a.Streams[r], a.Ranks[r])
			require.NoError(t, err)
			require.NoError(t, compress.Restore(ctx, b.Streams[r], b.Ranks[r], snap))
		}
		require.Equal(t, want[at:], run(b, k.grads[at:]), "resumed at step %d on %s", at, dev.Name())
	}
}

// isLinear compares the first step of all ranks with that of one rank that has the mean gradient.
func (k kit) isLinear(t *testing.T) {
	c := k.cluster(t, kernels.CPU())
	many, _ := c.Step(k.grads[0])
	mean := make([]float32, c.n)
	for i := range mean {
		var sum float64
		for _, g := range k.grads[0] {
			sum += float64(g[i])
		}
		mean[i] = float32(sum / float64(k.size))
	}
	one := NewCluster(t, k.law.New, kernels.CPU(), 1, 42, k.parts...)
	alone, _ := one.Step([][]float32{mean})
	var apart, length, largest float64
	for i, x := range alone[0] {
		d := float64(x) - float64(many[0][i])
		apart, length = apart+d*d, length+float64(x)*float64(x)
		for _, g := range k.grads[0] {
			largest = max(largest, math.Abs(float64(g[i])))
		}
	}
	// Each rank's payload is rounded, at worst to the 8 bits of bf16, in proportion to its own entries, and the mean once more; a factor
	// of two for what a method makes of that.
	tol := 2 * 0x1p-8 * (math.Sqrt(length) + largest*math.Sqrt(float64(c.n))/8)
	if !(math.Sqrt(apart) <= tol) {
		t.Fatalf("%d ranks and one with their mean are %v apart, want %v at most", k.size, math.Sqrt(apart), tol)
	}
}

// restoreRefuses: a snapshot that lacks something or has another size is refused, and nothing changes.
func restoreRefuses(t *testing.T, law Law) {
	ctx := context.Background()
	k := kit{law, 2, []compress.Part{compress.NewPart("matrix", 8, 16)}, nil}
	a := k.cluster(t, kernels.CPU())
	a.Step(Gradients(rand.New(rand.NewPCG(7, 7)), 0, 2, 128))
	before, err := compress.Save(ctx, a.Streams[0], a.Ranks[0])
	require.NoError(t, err)
	for name := range before {
		for _, damage := range []func(compress.Snapshot){
			func(s compress.Snapshot) { delete(s, name) },
			func(s compress.Snapshot) { s[name] = append([]byte{1}, s[name]...) },
		} {
			fresh := k.cluster(t, kernels.CPU())
			clean, err := compress.Save(ctx, fresh.Streams[0], fresh.Ranks[0])
			require.NoError(t, err)
			bad := compress.Snapshot{}
			for n, x := range before {
				bad[n] = x
			}
			damage(bad)
			require.ErrorContains(t, compress.Restore(ctx, fresh.Streams[0], fresh.Ranks[0], bad), name)
			after, err := compress.Save(ctx, fresh.Streams[0], fresh.Ranks[0])
			require.NoError(t, err)
			require.Equal(t, clean, after, "a refused restore must change nothing")
		}
	}
}

// comesBack: gradients of zero, as an unused parameter has, do not kill a method: it sends something of every tensor afterwards.
func comesBack(t *testing.T, law Law) {
	const ranks, zeros, most = 2, 3, 100
	k := kit{law, ranks, []compress.Part{compress.NewPart("vector", 40), compress.NewPart("matrix", 24, 16)}, nil}
	c := k.cluster(t, kernels.CPU())
	g := Gradients(rand.New(rand.NewPCG(7, 8)), 0, ranks, c.n)
	for range zeros {
		means, _ := c.Step([][]float32{make([]float32, c.n), make([]float32, c.n)})
		require.Equal(t, make([]float32, c.n), means[0], "of nothing comes nothing")
	}
	var vector, matrix bool
	for step := 0; !vector || !matrix; step++ {
		require.Less(t, step, most, "nothing comes any more after gradients of zero: vector %v, matrix %v", vector, matrix)
		means, _ := c.Step(g)
		for i, x := range means[0] {
			vector, matrix = vector || i < 40 && x != 0, matrix || i >= 40 && x != 0
		}
	}
}
