package dataset

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func binaryEntropy(p float64) float64 { return -p*math.Log(p) - (1-p)*math.Log(1-p) }

func TestEntropyRate(t *testing.T) {
	uniform := &source{vocab: 5, next: slices.Repeat([]float64{0.2}, 125)}
	// A chain of order 1 with chances p of 0 to 1 and q of 1 to 0 is at 0 for a share q/(p+q) of the time.
	const p, q = 0.1, 0.3
	chain := &source{vocab: 2, next: []float64{1 - p, p, q, 1 - q, 1 - p, p, q, 1 - q}}
	// The next symbol is the exclusive or of the last two, wrong with chance r: what comes before does not
	// change the entropy, and guesses from one symbol do no better than from none.
	const r = 0.05
	xor := &source{vocab: 2, next: []float64{1 - r, r, r, 1 - r, r, 1 - r, 1 - r, r}}
	for _, c := range []struct {
		name string
		s    *source
		want float64
	}{
		{"uniform", uniform, math.Log(5)},
		{"chain", chain, (q*binaryEntropy(p) + p*binaryEntropy(q)) / (p + q)},
		{"xor", xor, binaryEntropy(r)},
	} {
		pairs, err := stationary(c.s)
		if err != nil {
			t.Fatal(err)
		}
		// The last step moved stationaryDiff; these chains at least halve the distance in some ten steps, so
		// less than 20 times that is left, each part of it worth at most log(vocab) < 2.
		if got := entropyRate(c.s, pairs); math.Abs(got-c.want) > 40*stationaryDiff {
			t.Errorf("%s: %.15g, want %.15g", c.name, got, c.want)
		}
	}
}

func TestStationaryReportsNoConvergence(t *testing.T) {
	// 0 and 1 take turns in any start; pairs 01 and 10 swap for ever, pairs 00 and 11 feed one of them.
	s := &source{vocab: 2, next: []float64{0, 1, 1, 0, 0, 1, 0, 1}}
	_, err := stationary(s)
	wantError(t, err, "did not converge")
}

// The loss of the true source on its own text is Floor, up to the central limit theorem for the
// means of 200 blocks that are long against the memory of the chain.
func TestSampleMeetsFloor(t *testing.T) {
	for _, seed := range []uint64{0, 1} {
		d, err := Markov(t.Context(), Options{Seed: seed})
		if err != nil {
			t.Fatal(err)
		}
		s := randomSource(seed)
		const blocks = 200
		size := (len(d.Train) - 2) / blocks
		sum, squares := 0.0, 0.0
		for k := range blocks {
			loss := 0.0
			for i := 2 + k*size; i < 2+(k+1)*size; i++ {
				loss -= math.Log(s.after(int(d.Train[i-2]), int(d.Train[i-1]))[d.Train[i]])
			}
			loss /= float64(size)
			sum += loss
			squares += loss * loss
		}
		mean := sum / blocks
		sigma := math.Sqrt((squares/blocks - mean*mean) / (blocks - 1))
		if math.Abs(mean-d.Floor) > 5*sigma { // chance 6e-7
			t.Errorf("seed %d: loss %.5f, floor %.5f, sigma %.5f", seed, mean, d.Floor, sigma)
		}
		// What is left to learn: from the counts alone, then from the last symbol, then from both.
		none, one := d.conditionalEntropy(1), d.conditionalEntropy(d.Vocab)
		t.Logf("seed %d: %.3f nats from no symbol, %.3f from one, floor %.3f", seed, none, one, d.Floor)
		if none < 3.1 || one > none-0.5 || d.Floor > one-0.25 || d.Floor < 1.5 {
			t.Errorf("seed %d: %.3f nats from no symbol, %.3f from one, floor %.3f: too easy or too hard", seed, none, one, d.Floor)
		}
	}
}

// conditionalEntropy is the empirical entropy of a train token given the one before it modulo contexts.
func (d *Text) conditionalEntropy(contexts int) float64 {
	counts := make([][]float64, contexts)
	for i := range counts {
		counts[i] = make([]float64, d.Vocab)
	}
	for i, v := range d.Train[1:] {
		counts[int(d.Train[i])%contexts][v]++
	}
	h := 0.0
	for _, row := range counts {
		total := 0.0
		for _, n := range row {
			total += n
		}
		for _, n := range row {
			if n > 0 {
				h -= n / float64(len(d.Train)-1) * math.Log(n/total)
			}
		}
	}
	return h
}

func TestMarkovIsItsSeed(t *testing.T) {
	full, err := Markov(t.Context(), Options{Seed: 7})
	if err != nil {
		t.Fatal(err)
	}
	if len(full.Train) != markovTrain || len(full.Valid) != markovValid || full.Vocab != 32 {
		t.Fatalf("%d and %d tokens of %d symbols", len(full.Train), len(full.Valid), full.Vocab)
	}
	if slices.Min(full.Train) != 0 || slices.Max(full.Train) != 31 {
		t.Errorf("tokens from %d to %d", slices.Min(full.Train), slices.Max(full.Train))
	}
	short, err := Markov(t.Context(), Options{Seed: 7, TrainLimit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(short.Train, full.Train[:1000]) || !slices.Equal(short.Valid, full.Valid) || short.Floor != full.Floor {
		t.Error("a limit changes more than the length")
	}
	other, err := Markov(t.Context(), Options{Seed: 8, TrainLimit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(other.Train, short.Train) || other.Floor == short.Floor {
		t.Error("another seed gives the same text")
	}
	if slices.Equal(full.Valid[:1000], full.Train[:1000]) {
		t.Error("the splits are the same")
	}
}

// Mean and variance of a gamma variable are both its shape, its fourth central moment 3k^2+6k.
func TestGamma(t *testing.T) {
	const k, n = concentration, 200_000
	rng := rand.New(rand.NewPCG(1, 2))
	sum, squares := 0.0, 0.0
	for range n {
		x := gamma(rng, k)
		sum += x
		squares += (x - k) * (x - k)
	}
	if mean, sigma := sum/n, math.Sqrt(k/n); math.Abs(mean-k) > 5*sigma {
		t.Errorf("mean %g, want %g within 5 x %g", mean, k, sigma)
	}
	if variance, sigma := squares/n, math.Sqrt((2*k*k+6*k)/n); math.Abs(variance-k) > 5*sigma {
		t.Errorf("variance %g, want %g within 5 x %g", variance, k, sigma)
	}
}

func BenchmarkMarkov(b *testing.B) {
	for b.Loop() {
		if _, err := Markov(b.Context(), Options{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*(markovTrain+markovValid)/b.Elapsed().Seconds(), "tokens/s")
}
