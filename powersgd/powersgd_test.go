package powersgd_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gradpress/gradpress/compress"
	"github.com/gradpress/gradpress/compress/compresstest"
	"github.com/gradpress/gradpress/kernels"
	"github.com/gradpress/gradpress/powersgd"
)

var ctx = context.Background()

func parse(t testing.TB, text string) compress.Method {
	var r compress.Registry
	powersgd.Register(&r)
	m, err := r.Parse(text)
	require.NoError(t, err)
	return m
}

// At rate 0.1 a vector is compressed too. Conservation is checked below: here the error of an element depends on the whole column.
func TestLaws(t *testing.T) {
	for _, text := range []string{
		"powersgd:rank=1", "powersgd:rank=2,rate=0.1,residual=mean", "powersgd:rank=4,rate=0.1,warm_start=false", "powersgd:begin=2",
	} {
		t.Run(text, func(t *testing.T) { compresstest.Run(t, compresstest.Law{New: parse(t, text).New}) })
	}
}

// mixed is a set in which matrices and tensors that go dense take turns.
var mixed = []compress.Part{
	compress.NewPart("conv", 12, 4, 3, 3), compress.NewPart("bias", 12), compress.NewPart("scale"), compress.NewPart("fc", 40, 31),
	compress.NewPart("same", 40, 31), compress.NewPart("empty", 0, 7), compress.NewPart("small", 3, 3), compress.NewPart("tall", 301, 9),
}

// goesDense says which of mixed are, at rate 2 and ranks up to 2.
var goesDense = map[string]bool{"bias": true, "scale": true, "empty": true, "small": true}

// What went in came out or is owed, on average over ranks; ranks agree in every bit; v is emptied; tensors sent dense keep no
// residual; and the residual of a local projection is never longer than what was projected.
func TestConservesAndContracts(t *testing.T) {
	const steps = 5
	for _, residual := range []string{"local", "mean"} {
		for _, rank := range []int{1, 2} {
			for _, size := range []int{1, 2, 5} {
				for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()} {
					t.Run(fmt.Sprintf("%s/rank=%d/ranks=%d/%s", residual, rank, size, dev.Name()), func(t *testing.T) {
						m := parse(t, fmt.Sprintf("powersgd:rank=%d,residual=%s", rank, residual))
						c := compresstest.NewCluster(t, m.New, dev, size, 42, mixed...)
						n := compress.Set{Parts: mixed}.Len()
						balance, mass := make([]float64, n), make([]float64, n)
						owed := make([][]float32, size)
						for r := range owed {
							owed[r] = make([]float32, n)
						}
						for step := range steps {
							grads := compresstest.Gradients(rand.New(rand.NewPCG(1, uint64(step))), step, size, n)
							before := owed
							means, left := c.Step(grads)
							owed = c.State("residual")
							for r := range size {
								require.Equal(t, means[0], means[r], "rank %d differs at step %d", r, step)
								require.Equal(t, make([]float32, n), left[r])
								for i, g := range grads[r] {
									balance[i] += (float64(g) - float64(means[0][i])) / float64(size)
								}
								eachColumn(mixed, grads[r], func(_ string, at []int, length float64) {
									for _, i := range at {
										mass[i] += length / float64(size)
									}
								})
								checkOwed(t, residual, rank, before[r], grads[r], owed[r])
							}
						}
						for r := range size {
							for i, x := range owed[r] {
								balance[i] -= float64(x) / float64(size)
							}
						}
						// A step rounds an element of the residual and of the result 2 rank + 1 times each, and the mean of Q. Partial
						// sums are at most 1 + rank times the length of a column of M, which is at most that of all its
						// gradients so far; three times that, where the difference to the mean is kept.
						for i, x := range balance {
							tol := steps * float64((4*rank+3)*(1+rank)*3) * 0x1p-24 * mass[i]
							require.LessOrEqual(t, math.Abs(x), tol, "element %d", i)
						}
					})
				}
			}
		}
	}
}

// eachColumn calls f for every column of every part: its indices in the set and its length.
func eachColumn(parts []compress.Part, x []float32, f func(part string, at []int, length float64)) {
	lo := 0
	for _, p := range parts {
		rows := 1
		if len(p.Shape) > 0 {
			rows = p.Shape[0]
		}
		for j := 0; rows > 0 && j < p.Len()/rows; j++ {
			var at []int
			sum := 0.0
			for i := range rows {
				k := lo + i*(p.Len()/rows) + j
				at = append(at, k)
				sum += float64(x[k]) * float64(x[k])
			}
			f(p.Name, at, math.Sqrt(sum))
		}
		lo += p.Len()
	}
}

func checkOwed(t *testing.T, residual string, rank int, before, grad, after []float32) {
	m := make([]float32, len(grad))
	for i, g := range grad {
		m[i] = before[i] + g
	}
	was := map[string]float64{}
	eachColumn(mixed, m, func(part string, _ []int, length float64) { was[part] += length * length })
	now := map[string]float64{}
	eachColumn(mixed, after, func(part string, _ []int, length float64) { now[part] += length * length })
	for part := range was {
		switch {
		case goesDense[part]:
			require.Zero(t, now[part], "%s keeps a residual", part)
		case residual == "local":
			require.LessOrEqual(t, math.Sqrt(now[part]), math.Sqrt(was[part])*(1+float64((2*rank+1)*(1+rank))*0x1p-24), part)
		}
	}
}

// spectrum is a matrix with these singular values.
func spectrum(t *testing.T, rows, cols int, sigma ...float64) []float32 {
	s, err := kernels.CPU().NewStream()
	require.NoError(t, err)
	factor := func(n int, purpose uint64) []float32 {
		b, err := kernels.NewBuf[float32](kernels.CPU(), n*len(sigma))
		require.NoError(t, err)
		x := make([]float32, b.Len())
		kernels.Normal(x, [4]uint32{}, kernels.Key(purpose))
		kernels.Write(s, b, x)
		kernels.Orthogonalise(s, b, len(sigma))
		require.NoError(t, kernels.Read(ctx, s, x, b))
		return x
	}
	u, v := factor(rows, 1), factor(cols, 2)
	m := make([]float32, rows*cols)
	for i := range m {
		x := 0.0
		for k, sk := range sigma {
			x += sk * float64(u[k*rows+i/cols]) * float64(v[k*cols+i%cols])
		}
		m[i] = float32(x)
	}
	return m
}

func length(x []float32) float64 {
	sum := 0.0
	for _, v := range x {
		sum += float64(v) * float64(v)
	}
	return math.Sqrt(sum)
}

func difference(x, y []float32) []float32 {
	d := make([]float32, len(x))
	for i := range x {
		d[i] = x[i] - y[i]
	}
	return d
}

// withoutFeedback sees the same matrix every step, so that a warm start is power iteration on it.
func withoutFeedback(c powersgd.Config) func(compress.Set) (compress.Compressor, error) {
	return func(t compress.Set) (compress.Compressor, error) { return powersgd.New(c, t) }
}

// A warm start that drew Q again each step would stay where the first step is: power iteration converges to the best approximation.
func TestWarmStartConverges(t *testing.T) {
	m := spectrum(t, 30, 20, 1, 0.8, 0.4, 0.3, 0.2)
	best := math.Sqrt(0.4*0.4 + 0.3*0.3 + 0.2*0.2)
	for _, warm := range []bool{true, false} {
		mk := withoutFeedback(powersgd.Config{Rank: 2, Rate: 2, WarmStart: warm})
		c := compresstest.NewCluster(t, mk, kernels.CPU(), 2, 7, compress.NewPart("w", 30, 20))
		first, _ := c.Step([][]float32{m, m})
		require.Greater(t, length(difference(m, first[0])), 1.05*best)
		var last [][]float32
		for range 20 {
			last, _ = c.Step([][]float32{m, m})
		}
		if warm {
			// The error converges as the square of (0.4/0.8)^2 a step.
			require.InDelta(t, best, length(difference(m, last[0])), 1e-5)
		} else {
			require.Equal(t, first, last, "without a warm start every step begins at the first Q")
		}
	}
}

// A gradient of zeros, as an unused parameter gives, must do no harm then or later.
func TestZeroGradient(t *testing.T) {
	m := spectrum(t, 30, 20, 1, 0.8, 0.4)
	zero := make([]float32, len(m))
	run := func(text string, grads ...[]float32) (means [][]float32) {
		c := compresstest.NewCluster(t, parse(t, text).New, kernels.CPU(), 2, 7, compress.NewPart("w", 30, 20))
		for _, g := range grads {
			got, _ := c.Step([][]float32{g, g})
			means = append(means, got[0])
		}
		return means
	}
	for _, text := range []string{"powersgd", "powersgd:residual=mean", "powersgd:warm_start=false"} {
		want := run(text, m, m)
		got := run(text, zero, zero, m, m)
		require.Equal(t, [][]float32{zero, zero}, got[:2])
		require.Equal(t, want, got[2:], "%s: zeros must leave no trace", text)
	}
	// In the middle, when nothing is owed but rounding errors, as rank 3 sends all of m: Q may turn to those and away from m, and must
	// find back.
	got := run("powersgd:rank=3", m, zero, zero, m, m)
	twice := make([]float32, len(m))
	for i := range twice {
		twice[i] = 2*m[i] - got[3][i]
	}
	require.Less(t, length(difference(twice, got[4])), 1e-5)
}

// The first steps give the mean itself and leave no trace: then the method starts as it does without them.
func TestBeginsDense(t *testing.T) {
	m, n := spectrum(t, 30, 20, 1, 0.8, 0.4, 0.3), spectrum(t, 30, 20, 0.9, 0.9, 0.1)
	run := func(text string, grads ...[]float32) (means [][]float32) {
		c := compresstest.NewCluster(t, parse(t, text).New, kernels.CPU(), 3, 7, compress.NewPart("w", 30, 20))
		for _, g := range grads {
			got, _ := c.Step([][]float32{g, g, g})
			means = append(means, got[0])
		}
		return means
	}
	want := run("powersgd", m, n, m)
	require.NotEqual(t, m, want[0], "rank 2 cannot send rank 4")
	got := run("powersgd:begin=2", n, m, m, n, m)
	for k, exact := range [][]float32{n, m} {
		for i, x := range exact {
			require.InDelta(t, x, got[k][i], 4*0x1p-24*math.Abs(float64(x)), "three equal numbers, added and divided by 3")
		}
	}
	require.Equal(t, want, got[2:])
	require.Equal(t, 2, parse(t, "powersgd:begin=2").Warmup)
}

// A matrix of lower rank than asked for is sent whole and counted once.
func TestRankDeficient(t *testing.T) {
	m := spectrum(t, 40, 50, 1, 0.5)
	for _, dev := range []kernels.Device{kernels.CPU(), kernels.Lazy()} {
		c := compresstest.NewCluster(t, parse(t, "powersgd:rank=8").New, dev, 3, 7, compress.NewPart("w", 40, 50))
		total := make([]float32, len(m))
		for range 4 {
			means, _ := c.Step([][]float32{m, m, m})
			// Each element is the sum of at most 40 products, rounded, of columns of length at most 1.
			require.Less(t, length(difference(m, means[0])), 40*0x1p-24*math.Sqrt(8)*4)
			for i, x := range means[0] {
				total[i] += x / 4
			}
		}
		require.Less(t, length(difference(m, total)), 1e-5)
	}
}

// step runs one rank by itself: what it offers is what it receives.
type step struct {
	t    testing.TB
	c    compress.Compressor
	s    kernels.Stream
	g, v kernels.Buf[float32]
	out  kernels.Buf[float32]
	got  compress.Received
}

func newStep(t testing.TB, text string, parts ...compress.Part) *step {
	dev := kernels.CPU()
	set := compress.Set{Parts: parts, Size: 1, Seed: 3, Dev: dev}
	x := &step{t: t}
	var err error
	x.c, err = parse(t, text).New(set)
	require.NoError(t, err)
	x.s, err = dev.NewStream()
	require.NoError(t, err)
	for _, b := range []*kernels.Buf[float32]{&x.g, &x.v, &x.out} {
		*b, err = kernels.NewBuf[float32](dev, set.Len())
		require.NoError(t, err)
	}
	noise := make([]float32, set.Len())
	kernels.Normal(noise, [4]uint32{}, kernels.Key(9))
	kernels.Write(x.s, x.v, noise)
	return x
}

// run is Start and all Next, on whatever is in v. It returns how many elements each payload had: of Linears, one round after the other.
func (x *step) run(sizes []int) []int {
	p, err := x.c.Start(ctx, x.s, x.v)
	for ; p != nil && err == nil; p, err = x.c.Next(ctx, x.s, x.got, x.out) {
		switch p := p.(type) {
		case *compress.Linear:
			x.got.Mean = p.X
			sizes = append(sizes, p.X.Len())
		case *compress.Many:
			x.got.Many = x.got.Many[:0]
			for _, q := range p.Of {
				mean := q.(*compress.Linear).X
				x.got.Many = append(x.got.Many, compress.Received{Mean: mean})
				sizes = append(sizes, mean.Len())
			}
		}
	}
	require.NoError(x.t, err)
	return sizes
}

// All P travel end to end, all Q end to end, and of dense tensors those that are neighbours.
func TestPayloads(t *testing.T) {
	for _, c := range []struct {
		text  string
		parts []compress.Part
		want  []int
	}{
		{"powersgd", mixed, []int{2 * (12 + 40 + 40 + 301), 12 + 1, 9, 2 * (36 + 31 + 31 + 9)}},
		{"powersgd:rank=1", mixed[:4], []int{12 + 40, 13, 36 + 31}},
		{"powersgd", mixed[1:3], []int{0, 13}},
		{"powersgd", nil, []int{0}},
		{"powersgd", []compress.Part{compress.NewPart("w", 8, 8)}, []int{0, 64}}, // 64 = 2*2*16, not more
		{"powersgd:rate=1.9", []compress.Part{compress.NewPart("w", 8, 8)}, []int{16, 16}},
		{"powersgd:rank=100,rate=0.1", []compress.Part{compress.NewPart("w", 5, 8)}, []int{25, 40}},
		{"powersgd:rate=0.1", []compress.Part{compress.NewPart("v", 9)}, []int{9, 1}},
	} {
		require.Equal(t, c.want, newStep(t, c.text, c.parts...).run(nil), "%s %v", c.text, c.parts)
	}
}

// The first Q depends on the seed and the tensor's name, and on nothing else.
func TestFirstQ(t *testing.T) {
	first := func(rank int, seed uint64, names ...string) map[string][]byte {
		set := compress.Set{Rank: rank, Size: 3, Seed: seed, Dev: kernels.Lazy()}
		for _, name := range names {
			set.Parts = append(set.Parts, compress.NewPart(name, 20, 30))
		}
		c, err := parse(t, "powersgd").New(set)
		require.NoError(t, err)
		s, err := set.Dev.NewStream()
		require.NoError(t, err)
		snap, err := compress.Save(ctx, s, c)
		require.NoError(t, err)
		return snap
	}
	a, b := first(0, 5, "x", "y"), first(2, 5, "y")
	require.Equal(t, a["y/q0"], b["y/q0"])
	require.Equal(t, a["y/q0"], a["y/q"])
	require.NotEqual(t, a["x/q0"], a["y/q0"])
	require.NotEqual(t, b["y/q0"], first(2, 6, "y")["y/q0"])
}

func TestAllocatesNothing(t *testing.T) {
	for _, text := range []string{"powersgd", "powersgd:residual=mean,warm_start=false", "powersgd:begin=1000"} {
		x := newStep(t, text, mixed...)
		sizes := x.run(nil)
		require.Zero(t, testing.AllocsPerRun(10, func() { x.run(sizes[:0]) }), text)
	}
}

func TestSettings(t *testing.T) {
	var r compress.Registry
	powersgd.Register(&r)
	for text, want := range map[string]string{
		"powersgd:rank=0": "at least 1", "powersgd:rate=0": "over 0", "powersgd:rate=-1": "over 0",
		"powersgd:residual=both": "local or mean", "powersgd:begin=-1": "begin must be 0", "powersgd:k=1": "warm_start",
	} {
		_, err := r.Parse(text)
		require.ErrorContains(t, err, want, text)
	}
	m := parse(t, "powersgd:rank=3,residual=mean,warm_start=false,rate=1.5")
	require.Equal(t, powersgd.Config{Rank: 3, Rate: 1.5, Residual: powersgd.Mean}, m.Config)
	for _, s := range r.Describe()[0].Settings {
		require.Equal(t, map[string]string{"rank": "2", "rate": "2", "warm_start": "true", "residual": "local", "begin": "0"}[s.Key], s.Default)
	}
}

// BenchmarkStep is one step of one rank with feedback, everything but the exchange. x/read is its time over that of reading the matrix
// once with the fastest loop of the standard library, x/loop over that of our plain loop SumSquares. The gradient is what v holds:
// zeros after the first step, which cost the same.
func BenchmarkStep(b *testing.B) {
	for _, n := range []int{2560, 5000} {
		for _, rank := range []int{1, 2, 4} {
			for _, residual := range []string{"local", "mean"} {
				b.Run(fmt.Sprintf("%dx%d/rank=%d/%s", n, n, rank, residual), func(b *testing.B) {
					x := newStep(b, fmt.Sprintf("powersgd:rank=%d,residual=%s", rank, residual), compress.NewPart("w", n, n))
					sizes := x.run(nil)
					memory, _ := kernels.Host(kernels.Bytes(x.out))
					sum, err := kernels.NewBuf[float64](kernels.CPU(), 1)
					require.NoError(b, err)
					read := fastest(func() { bytes.Count(memory, []byte{1}) })
					loop := fastest(func() { kernels.SumSquares(x.s, sum, x.out) })
					b.SetBytes(int64(len(memory)))
					for b.Loop() {
						x.run(sizes[:0])
					}
					step := b.Elapsed() / time.Duration(b.N)
					b.ReportMetric(step.Seconds()/read.Seconds(), "x/read")
					b.ReportMetric(step.Seconds()/loop.Seconds(), "x/loop")
				})
			}
		}
	}
}

func fastest(f func()) time.Duration {
	best := time.Duration(math.MaxInt64)
	for range 20 {
		start := time.Now()
		f()
		best = min(best, time.Since(start))
	}
	return best
}
