package dataset

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const eps32 = 1.0 / (1 << 23)

// wantError fails unless err has all parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not have %q", err, part)
		}
	}
}

// randomImages is a set with n train images of random pixels.
func randomImages(n, c, h, w int) *Images {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	d := &Images{Classes: 10, C: c, H: h, W: w}
	d.Train = ImageSplit{X: make([]uint8, n*c*h*w), Y: make([]int32, n)}
	for i := range d.Train.X {
		d.Train.X[i] = uint8(rng.IntN(100 + i%100))
	}
	for i := range d.Train.Y {
		d.Train.Y[i] = int32(rng.IntN(10))
	}
	d.measure()
	return d
}

func TestFillNormalises(t *testing.T) {
	const n, c, h, w = 50, 3, 7, 5
	d := randomImages(n, c, h, w)
	idx := make([]int32, n)
	for i := range idx {
		idx[i] = int32(n - 1 - i)
	}
	x, y := make([]float32, n*c*h*w), make([]int32, n)
	d.Fill(x, y, d.Train, idx, rand.New(rand.NewPCG(1, 2))) // not Mirror: no augmentation
	for ch := range c {
		sum, squares := 0.0, 0.0
		for i := range n {
			for p := range h * w {
				v := float64(x[(i*c+ch)*h*w+p])
				sum += v
				squares += v * v
			}
		}
		// Mean and Std are off by at most eps/2 of themselves; the three roundings of a value by eps/2 each,
		// of a value below 255/Std.
		tol := 2 * eps32 * 255 / float64(d.Std[ch])
		if mean := sum / (n * h * w); math.Abs(mean) > tol {
			t.Errorf("channel %d: mean %g, tolerance %g", ch, mean, tol)
		}
		if dev := math.Sqrt(squares / (n * h * w)); math.Abs(dev-1) > 2*tol {
			t.Errorf("channel %d: deviation %g, tolerance %g", ch, dev, 2*tol)
		}
	}
	for i := range y {
		if y[i] != d.Train.Y[n-1-i] {
			t.Fatalf("label %d is %d, want %d", i, y[i], d.Train.Y[n-1-i])
		}
	}
}

func TestMeasureConstantChannel(t *testing.T) {
	d := randomImages(4, 2, 3, 3)
	for i := range d.Train.X {
		if i/9%2 == 1 {
			d.Train.X[i] = 77
		}
	}
	d.measure()
	x, y := make([]float32, 18), make([]int32, 1)
	d.Fill(x, y, d.Train, []int32{2}, nil)
	if !slices.Equal(x[9:], make([]float32, 9)) {
		t.Errorf("a constant channel became %v, want zeros", x[9:])
	}
}

// Every shift and both directions against padding, cropping and mirroring done one by one.
func TestShiftMatchesPadCropMirror(t *testing.T) {
	const c, h, w = 2, 6, 9
	d := randomImages(1, c, h, w)
	plain := make([]float32, c*h*w)
	d.scale(plain, d.Train.X)
	got, want := make([]float32, c*h*w), make([]float32, c*h*w)
	for dy := -cropPad; dy <= cropPad; dy++ {
		for dx := -cropPad; dx <= cropPad; dx++ {
			for _, mirror := range []bool{false, true} {
				const ph, pw = h + 2*cropPad, w + 2*cropPad
				padded := make([]float32, c*ph*pw)
				for ch := range c {
					for y := range h {
						copy(padded[(ch*ph+y+cropPad)*pw+cropPad:], plain[(ch*h+y)*w:][:w])
					}
					for y := range h {
						row := want[(ch*h+y)*w:][:w]
						copy(row, padded[(ch*ph+y+cropPad+dy)*pw+cropPad+dx:])
						if mirror {
							slices.Reverse(row)
						}
					}
				}
				d.scaleShifted(got, d.Train.X, dy, dx, mirror)
				if !slices.Equal(got, want) {
					t.Fatalf("dy %d, dx %d, mirror %v differs", dy, dx, mirror)
				}
			}
		}
	}
}

func TestFillAugments(t *testing.T) {
	d := randomImages(1, 1, 12, 12)
	d.Mirror = true
	x, y, seen := make([]float32, 144), make([]int32, 1), map[string]bool{}
	rng := rand.New(rand.NewPCG(3, 4))
	for range 4000 { // each of 162 cases is missed with a chance below 162 exp(-4000/162) < 1e-8
		d.Fill(x, y, d.Train, []int32{0}, rng)
		key := make([]byte, 0, 4*len(x))
		for _, v := range x {
			b := math.Float32bits(v)
			key = append(key, byte(b), byte(b>>8), byte(b>>16), byte(b>>24))
		}
		seen[string(key)] = true
	}
	if want := 9 * 9 * 2; len(seen) != want {
		t.Errorf("%d different augmentations, want %d", len(seen), want)
	}
	again := make([]float32, 144)
	d.Fill(x, y, d.Train, []int32{0}, rand.New(rand.NewPCG(5, 6)))
	d.Fill(again, y, d.Train, []int32{0}, rand.New(rand.NewPCG(5, 6)))
	if !slices.Equal(x, again) {
		t.Error("the same generator gives another image")
	}
}

func TestFillPanicsOnWrongLength(t *testing.T) {
	d := randomImages(2, 1, 4, 4)
	defer func() {
		if recover() == nil {
			t.Error("no panic")
		}
	}()
	d.Fill(make([]float32, 31), make([]int32, 2), d.Train, []int32{0, 1}, nil)
}

func TestNoAllocations(t *testing.T) {
	d := randomImages(64, 3, 32, 32)
	d.Mirror = true
	x, y, rng := make([]float32, 8*3072), make([]int32, 8), rand.New(rand.NewPCG(1, 1))
	sampler, err := NewSampler(64, 8, 1, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	tokens, in, next := make([]int32, 1000), make([]int32, 40), make([]int32, 40)
	streams, err := NewStreams(tokens, 4, 10, 1, 2)
	if err != nil {
		t.Fatal(err)
	}
	step := 0
	if n := testing.AllocsPerRun(20, func() { // passes the ends of epochs and streams
		d.Fill(x, y, d.Train, sampler.Batch(step), rng)
		d.Fill(x, y, d.Train, sampler.Batch(step), nil)
		streams.Batch(step, in, next)
		step++
	}); n != 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

// loaders are all sets, for the laws they share.
var loaders = map[string]func(context.Context, Options) error{
	"glyphs":      func(ctx context.Context, o Options) error { _, err := Glyphs(ctx, o); return err },
	"markov":      func(ctx context.Context, o Options) error { _, err := Markov(ctx, o); return err },
	"cifar10":     func(ctx context.Context, o Options) error { _, err := CIFAR10(ctx, o); return err },
	"shakespeare": func(ctx context.Context, o Options) error { _, err := Shakespeare(ctx, o); return err },
}

func TestEmptyDirectory(t *testing.T) {
	dir := t.TempDir()
	wantError(t, loaders["cifar10"](t.Context(), Options{Dir: dir}), dir, "cifar-10-batches-bin", "cifar-10-binary.tar.gz",
		"cifar10-jpeg.tar.zst", "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz")
	wantError(t, loaders["shakespeare"](t.Context(), Options{Dir: dir}), dir, "tinyshakespeare.txt", "tinyshakespeare.txt.zst", "https://")
}

func TestGeneratorsStop(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, name := range []string{"glyphs", "markov"} {
		if err := loaders[name](ctx, Options{}); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: error %v, want context.Canceled", name, err)
		}
	}
}

func TestNegativeLimit(t *testing.T) {
	for _, name := range []string{"glyphs", "markov", "cifar10"} {
		err := loaders[name](t.Context(), Options{Dir: t.TempDir(), TrainLimit: -1})
		wantError(t, err, "TrainLimit", "-1")
	}
}

func BenchmarkFill(b *testing.B) {
	d := randomImages(64, 3, 32, 32)
	d.Mirror = true
	x, y, idx := make([]float32, 64*3072), make([]int32, 64), make([]int32, 64)
	for _, c := range []struct {
		name string
		rng  *rand.Rand
	}{{"plain", nil}, {"augmented", rand.New(rand.NewPCG(1, 1))}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(4 * int64(len(x)))
			for b.Loop() {
				d.Fill(x, y, d.Train, idx, c.rng)
			}
		})
	}
}
