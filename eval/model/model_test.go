package model

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
)

// sample is a model and two batches for it.
type sample struct {
	name    string
	mk      func(seed uint64) (Model, error)
	a, b    Batch
	classes int
	rate    float32 // a learning rate that works
}

func samples() []sample {
	cfg := LSTMConfig{Vocab: 11, Embed: 6, Hidden: 9, Layers: 2}
	return []sample{
		{"resnet8", func(seed uint64) (Model, error) { return NewResNet(8, 10, 3, 8, seed) },
			imageBatch(4, 3, 8, 10, 1), imageBatch(4, 3, 8, 10, 2), 10, 0.1},
		{"resnet8 odd", func(seed uint64) (Model, error) { return NewResNet(8, 4, 1, 7, seed) },
			imageBatch(4, 1, 7, 4, 1), imageBatch(4, 1, 7, 4, 2), 4, 0.1},
		{"lstm", func(seed uint64) (Model, error) { return NewLSTM(cfg, seed) },
			textBatch(3, 7, cfg.Vocab, 1), textBatch(3, 7, cfg.Vocab, 2), cfg.Vocab, 5},
	}
}

func (s sample) new(t testing.TB) Model {
	t.Helper()
	m, err := s.mk(1)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func eachSample(t *testing.T, f func(t *testing.T, s sample)) {
	for _, s := range samples() {
		t.Run(s.name, func(t *testing.T) { f(t, s) })
	}
}

func mustStep(t testing.TB, m Model, b Batch) float64 {
	t.Helper()
	loss, err := m.Step(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return loss
}

func clearGradients(m Model) {
	for _, p := range m.Params() {
		clear(p.G)
	}
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool { return math.Float32bits(x) == math.Float32bits(y) })
}

// TestModelGradients keeps ReLU away from its kink, near which differences measure nothing: channels
// are on or off for every pixel. Kinks are for the test of batchNorm.
func TestModelGradients(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		m := s.new(t)
		for _, p := range m.Params() {
			switch {
			case strings.HasSuffix(p.Name, ".bn1.bias"):
				fill(p.W, 6)
				p.W[3] = -6
			case strings.HasSuffix(p.Name, "bn1.bias"), strings.HasSuffix(p.Name, "bn2.bias"):
				fill(p.W, 6)
			case p.Name == "fc.weight":
				fillUniform(p.W, 0.05, stream(4, 0))
			}
		}
		mustStep(t, m, s.a)
		var vars []variable
		for _, p := range m.Params() {
			vars = append(vars, variable{p.Name, p.W, append([]float32(nil), p.G...)})
		}
		// A score of about 1 is off by some roundings a layer; between scores they are independent.
		noise := float64(len(vars)) / 2 * eps32 / math.Sqrt(float64(s.classes*len(s.a.Labels)))
		checkGradients(t, vars, noise, func() float64 {
			m.Reset()
			return mustStep(t, m, s.a)
		})
	})
}

func TestReady(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		m := s.new(t)
		var order []int
		final := map[int][]float32{}
		if _, err := m.Step(s.a, func(i int) error {
			order = append(order, i)
			final[i] = append([]float32(nil), m.Params()[i].G...)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for k, i := range order {
			if want := len(m.Params()) - 1 - k; i != want {
				t.Fatalf("call %d is for %d, want %d", k, i, want)
			}
		}
		if len(order) != len(m.Params()) {
			t.Fatalf("%d calls for %d parameters", len(order), len(m.Params()))
		}
		for i, p := range m.Params() {
			if !sameBits(final[i], p.G) {
				t.Errorf("%s changed after it was final", p.Name)
			}
			if slices.Max(p.G) == 0 && slices.Min(p.G) == 0 {
				t.Errorf("%s has no gradient", p.Name)
			}
		}
	})
}

// TestReadyInTime fails if gradients are all announced at the end.
func TestReadyInTime(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		m := s.new(t)
		if _, err := m.Step(s.a, func(i int) error {
			for _, p := range m.Params()[:max(0, i-2)] { // one layer of the LSTM has three
				if slices.Max(p.G) != 0 || slices.Min(p.G) != 0 {
					t.Fatalf("%s has a gradient when %d is announced", p.Name, i)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

func TestReadyError(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		for stop := range s.new(t).Params() {
			m, calls := s.new(t), 0
			stopped := errors.New("stopped")
			_, err := m.Step(s.a, func(i int) error {
				calls++
				if i == stop {
					return stopped
				}
				return nil
			})
			if !errors.Is(err, stopped) || calls != len(m.Params())-stop {
				t.Fatalf("error at %d gave %v after %d calls", stop, err, calls)
			}
		}
	})
}

func TestStepAddsToGradients(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		m := s.new(t)
		mustStep(t, m, s.a)
		for _, p := range m.Params() {
			for i, g := range p.G {
				p.G[i] = g + 1
			}
		}
		m.Reset()
		mustStep(t, m, s.a)
		m.Reset()
		once := s.new(t)
		mustStep(t, once, s.a)
		for k, p := range m.Params() {
			for i, g := range p.G {
				// Up to 24 terms are added one by one to about 1.
				want := 1 + 2*float64(once.Params()[k].G[i])
				if math.Abs(float64(g)-want) > 25*eps32*(1+math.Abs(want)) {
					t.Fatalf("%s[%d] is %v, want %v", p.Name, i, g, want)
				}
			}
		}
	})
}

// TestSameBits also gives one replica gradients at odd places in one array, as a bucket would.
func TestSameBits(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		one, two := s.new(t), s.new(t)
		other, err := s.mk(2)
		if err != nil {
			t.Fatal(err)
		}
		for i, p := range one.Params() {
			q := two.Params()[i]
			if p.Name != q.Name || !slices.Equal(p.Shape, q.Shape) || !sameBits(p.W, q.W) {
				t.Fatalf("%s differs between replicas", p.Name)
			}
			if len(p.Shape) > 1 && sameBits(p.W, other.Params()[i].W) {
				t.Fatalf("%s does not depend on the seed", p.Name)
			}
			q.G = make([]float32, len(q.G)+1)[1:]
		}
		for step, b := range []Batch{s.a, s.b, s.a} {
			if a, b := mustStep(t, one, b), mustStep(t, two, b); a != b {
				t.Fatalf("step %d: losses %v and %v", step, a, b)
			}
			for i, p := range one.Params() {
				if !sameBits(p.G, two.Params()[i].G) {
					t.Fatalf("step %d: gradients of %s differ", step, p.Name)
				}
			}
			for i, p := range one.Buffers() {
				if !sameBits(p.X, two.Buffers()[i].X) {
					t.Fatalf("step %d: %s differs", step, p.Name)
				}
			}
		}
	})
}

// TestReplicasAtOnce runs replicas as workers do: they share nothing, nor does the BLAS below them.
func TestReplicasAtOnce(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		want := s.new(t)
		mustStep(t, want, s.a)
		replicas := make([]Model, 6)
		var wg sync.WaitGroup
		for i := range replicas {
			replicas[i] = s.new(t)
			wg.Go(func() {
				if _, err := replicas[i].Step(s.a, nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, m := range replicas {
			for i, p := range m.Params() {
				if !sameBits(p.G, want.Params()[i].G) {
					t.Fatalf("gradients of %s differ", p.Name)
				}
			}
		}
	})
}

func TestEvalLeavesTrainingAlone(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		plain, mixed := s.new(t), s.new(t)
		for step, b := range []Batch{s.a, s.b, s.a} {
			if a, b := mustStep(t, plain, b), mustStep(t, mixed, b); a != b {
				t.Fatalf("step %d: losses %v and %v", step, a, b)
			}
			mixed.Eval(s.b)
			mixed.Eval(s.half())
			for i, p := range plain.Params() {
				if !sameBits(p.G, mixed.Params()[i].G) || !sameBits(p.W, mixed.Params()[i].W) {
					t.Fatalf("step %d: %s differs", step, p.Name)
				}
			}
			for i, p := range plain.Buffers() {
				if !sameBits(p.X, mixed.Buffers()[i].X) {
					t.Fatalf("step %d: %s differs", step, p.Name)
				}
			}
		}
	})
}

// half is the first images of b, or as many texts cut from its beginning.
func (s sample) half() Batch {
	n := s.b.Size / 2
	cut := func(ids []int32) []int32 { return ids[:len(ids)/s.b.Size*n] }
	return Batch{Size: n, X: s.b.X[:len(s.b.X)/s.b.Size*n], Tokens: cut(s.b.Tokens), Labels: cut(s.b.Labels)}
}

func TestFreshLoss(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		// Scores of variance v put the loss about v/2 over ln(classes). Features of about 1 and weights of
		// variance 1/(3*fan-in) give v of about 1/3; the mean over the batch scatters by sqrt(v/n).
		tol := 1./6 + 3*math.Sqrt(1./3/float64(len(s.a.Labels)))
		want := math.Log(float64(s.classes))
		if loss := mustStep(t, s.new(t), s.a); math.Abs(loss-want) > tol {
			t.Errorf("Step: loss is %v, want %v +- %v", loss, want, tol)
		}
		loss, correct, count := s.new(t).Eval(s.a)
		if count != len(s.a.Labels) || correct < 0 || correct > count || math.IsNaN(loss) {
			t.Errorf("Eval: loss %v, %d of %d correct, want %d predictions", loss, correct, count, len(s.a.Labels))
		}
	})
}

func TestTraining(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		m := s.new(t)
		first := mustStep(t, m, s.a)
		for range 120 {
			clearGradients(m)
			m.Reset()
			mustStep(t, m, s.a)
			for _, p := range m.Params() {
				for i, g := range p.G {
					p.W[i] -= s.rate * g
				}
			}
		}
		m.Reset()
		if last := mustStep(t, m, s.a); last > first/2 {
			t.Errorf("loss on the same batch went from %v to %v only", first, last)
		}
		loss, correct, count := m.Eval(s.a)
		if correct < count/2 {
			t.Errorf("Eval after training: loss %v, %d of %d correct", loss/float64(count), correct, count)
		}
	})
}

func TestCarriedStateGoesOn(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		a, b := s.new(t), s.new(t)
		mustStep(t, a, s.a)
		mustStep(t, b, s.b) // another state
		for i, p := range b.Params() {
			copy(p.W, a.Params()[i].W)
		}
		if err := b.SetCarried(a.Carried()); err != nil {
			t.Fatal(err)
		}
		if x, y := mustStep(t, a, s.b), mustStep(t, b, s.b); x != y {
			t.Errorf("loss is %v after SetCarried, %v without interruption", y, x)
		}
		if err := b.SetCarried(make([]float32, 3)); err == nil {
			t.Error("state of the wrong size was taken")
		}
	})
}

func TestLSTMCarriesState(t *testing.T) {
	cfg := LSTMConfig{Vocab: 7, Embed: 5, Hidden: 8, Layers: 2}
	whole := textBatch(3, 10, cfg.Vocab, 4)
	var parts [2]Batch
	for i := range parts {
		parts[i].Size = 3
		parts[i].Tokens, parts[i].Labels = whole.Tokens[i*15:][:15], whole.Labels[i*15:][:15]
	}
	m, err := NewLSTM(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	const tol = 100 * eps32 // a mean loss of about 2 after some dozen roundings
	want := mustStep(t, m, whole)
	m.Reset()
	if got := (mustStep(t, m, parts[0]) + mustStep(t, m, parts[1])) / 2; math.Abs(got-want) > tol {
		t.Errorf("Step in two parts has loss %v, want %v", got, want)
	}
	if got := (mustStep(t, m, parts[0]) + mustStep(t, m, parts[1])) / 2; math.Abs(got-want) < tol {
		t.Errorf("Step without Reset has the same loss")
	}
	for range 2 {
		a, _, _ := m.Eval(parts[0])
		b, _, _ := m.Eval(parts[1])
		if got := (a + b) / 30; math.Abs(got-want) > tol {
			t.Errorf("Eval in two parts has loss %v, want %v", got, want)
		}
		m.ResetEval()
	}
}

func TestStepAllocatesNothing(t *testing.T) {
	eachSample(t, func(t *testing.T, s sample) {
		m := s.new(t)
		if n := testing.AllocsPerRun(5, func() { mustStep(t, m, s.a) }); n != 0 {
			t.Errorf("%v allocations a step", n)
		}
	})
}

func TestImageSizes(t *testing.T) {
	for size := 4; size < 12; size++ {
		for batch := 1; batch < 4; batch++ {
			m, err := NewResNet(14, 3, 2, size, 1)
			if err != nil {
				t.Fatal(err)
			}
			mustStep(t, m, imageBatch(batch, 2, size, 3, 1))
		}
	}
}

func TestErrors(t *testing.T) {
	for name, mk := range map[string]func() (Model, error){
		"depth":    func() (Model, error) { return NewResNet(10, 10, 3, 32, 1) },
		"classes":  func() (Model, error) { return NewResNet(8, 1, 3, 32, 1) },
		"channels": func() (Model, error) { return NewResNet(8, 10, 0, 32, 1) },
		"size":     func() (Model, error) { return NewResNet(8, 10, 3, 3, 1) },
		"vocab":    func() (Model, error) { return NewLSTM(LSTMConfig{1, 1, 1, 1}, 1) },
		"embed":    func() (Model, error) { return NewLSTM(LSTMConfig{2, 0, 1, 1}, 1) },
		"hidden":   func() (Model, error) { return NewLSTM(LSTMConfig{2, 1, 0, 1}, 1) },
		"layers":   func() (Model, error) { return NewLSTM(LSTMConfig{2, 1, 1, 0}, 1) },
	} {
		if _, err := mk(); err == nil {
			t.Errorf("bad %s is accepted", name)
		}
	}
	eachSample(t, func(t *testing.T, s sample) {
		m := s.new(t)
		for name, spoil := range map[string]func(b *Batch){
			"no size":        func(b *Batch) { b.Size = 0 },
			"wrong size":     func(b *Batch) { b.Size += 2 },
			"short labels":   func(b *Batch) { b.Labels = b.Labels[1:] },
			"label too high": func(b *Batch) { b.Labels[1] = int32(s.classes) },
			"negative label": func(b *Batch) { b.Labels[1] = -1 },
		} {
			b := s.a
			b.Labels = slices.Clone(b.Labels)
			spoil(&b)
			if _, err := m.Step(b, func(int) error { t.Errorf("%s: ready was called", name); return nil }); err == nil {
				t.Errorf("%s is accepted", name)
			}
		}
	})
}

func benchmarkResNet(b *testing.B, depth int) {
	for _, batch := range []int{8, 32} {
		b.Run(fmt.Sprintf("batch=%d", batch), func(b *testing.B) {
			m, err := NewResNet(depth, 10, 3, 32, 1)
			if err != nil {
				b.Fatal(err)
			}
			benchmarkStep(b, m, imageBatch(batch, 3, 32, 10, 2), batch, "images/s")
		})
	}
}

func BenchmarkResNet8Step(b *testing.B)  { benchmarkResNet(b, 8) }
func BenchmarkResNet20Step(b *testing.B) { benchmarkResNet(b, 20) }

func BenchmarkLSTMStep(b *testing.B) {
	for _, cfg := range []LSTMConfig{{Vocab: 64, Embed: 64, Hidden: 128, Layers: 1}, {Vocab: 65, Embed: 64, Hidden: 256, Layers: 2}} {
		for _, batch := range []int{8, 32} {
			b.Run(fmt.Sprintf("%dx%d/batch=%d", cfg.Layers, cfg.Hidden, batch), func(b *testing.B) {
				m, err := NewLSTM(cfg, 1)
				if err != nil {
					b.Fatal(err)
				}
				const steps = 32
				benchmarkStep(b, m, textBatch(batch, steps, cfg.Vocab, 2), batch*steps, "tokens/s")
			})
		}
	}
}

func benchmarkStep(b *testing.B, m Model, batch Batch, items int, unit string) {
	if _, err := m.Step(batch, nil); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := m.Step(batch, nil); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(items)*float64(b.N)/b.Elapsed().Seconds(), unit)
}

// imageBatch has normal pixels and uniform labels.
func imageBatch(n, channels, size, classes int, seed uint64) Batch {
	rng := stream(seed, 0)
	b := Batch{Size: n, X: make([]float32, n*channels*size*size), Labels: make([]int32, n)}
	fillNormal(b.X, 1, rng)
	for i := range b.Labels {
		b.Labels[i] = rng.Int32N(int32(classes))
	}
	return b
}

func textBatch(n, steps, vocab int, seed uint64) Batch {
	rng := stream(seed, 0)
	b := Batch{Size: n, Tokens: make([]int32, n*steps), Labels: make([]int32, n*steps)}
	for i := range b.Tokens {
		b.Tokens[i], b.Labels[i] = rng.Int32N(int32(vocab)), rng.Int32N(int32(vocab))
	}
	return b
}
