package model

import (
	"math"
	"testing"
)

func TestLinearGradients(t *testing.T) {
	const rows, in, out = 5, 7, 3
	l := newLinear("fc", in, out)
	l.init(stream(1, 0))
	x, r, y := normals(rows*in, 1, 2), normals(rows*out, 1, 3), make([]float32, rows*out)
	loss := func() float64 {
		copy(l.input(rows), x)
		l.forward(rows, y)
		return weigh(r, y)
	}
	loss()
	dx := make([]float32, len(x))
	l.backwardWeight(rows, r)
	l.backwardInput(rows, r, dx)
	checkGradients(t, []variable{
		{"weight", l.weight.W, l.weight.G}, {"bias", l.bias.W, l.bias.G}, {"input", x, dx},
	}, weighNoise(r, y, in+1), loss)
}

func TestPoolGradients(t *testing.T) {
	const batch, channels = 3, 4
	p := &pool{channels: channels, grid: grid{3, 5}}
	x, r, y := normals(batch*channels*15, 1, 1), normals(batch*channels, 1, 2), make([]float32, batch*channels)
	loss := func() float64 {
		copy(p.input(batch), pack(p.grid, batch, channels, x, float32(math.NaN())))
		p.forward(batch, y)
		return weigh(r, y)
	}
	loss()
	dx := make([]float32, channels*p.grid.size(batch))
	p.backward(batch, r, dx)
	checkGradients(t, []variable{{"input", x, unpack(p.grid, batch, channels, dx)}}, weighNoise(r, y, 15), loss)
}

func TestEmbeddingGradients(t *testing.T) {
	e := newEmbedding("embedding", 6, 5)
	e.init(stream(1, 0))
	ids := []int32{0, 5, 2, 2, 0, 1, 2}
	r, y := normals(len(ids)*5, 1, 2), make([]float32, len(ids)*5)
	loss := func() float64 {
		e.forward(ids, y)
		return weigh(r, y)
	}
	loss()
	e.backwardWeight(ids, r)
	checkGradients(t, []variable{{"weight", e.weight.W, e.weight.G}}, weighNoise(r, y, 1), loss)
}

func TestCrossEntropyGradients(t *testing.T) {
	const classes = 5
	labels := []int32{0, 4, 2, 2}
	scores := normals(len(labels)*classes, 2, 1)
	g := append([]float32(nil), scores...)
	crossEntropy(g, classes, labels, 0.25)
	checkGradients(t, []variable{{"scores", scores, g}}, 4*eps32, func() float64 {
		loss, _ := crossEntropy(append([]float32(nil), scores...), classes, labels, 1)
		return loss / 4
	})
}

func TestCrossEntropyIsStable(t *testing.T) {
	scores := []float32{1e4, -1e4, 0, 3e4, 3e4, 3e4}
	loss, correct := crossEntropy(scores, 3, []int32{1, 0}, 1)
	if want := 2e4 + math.Log(3); math.Abs(loss-want) > 1e-9*want || correct != 1 {
		t.Errorf("loss is %v with %d correct, want %v with 1", loss, correct, want)
	}
	want := []float64{1, -1, 0, 1./3 - 1, 1. / 3, 1. / 3}
	for i, v := range scores {
		if math.Abs(float64(v)-want[i]) > 2*eps32 {
			t.Errorf("gradient %d is %v, want %v", i, v, want[i])
		}
	}
}

func TestSquash(t *testing.T) {
	for x := float32(-12); x < 12; x += 1. / 512 {
		v := []float32{x, x}
		squash(v[:1], 1, 0)
		squash(v[1:], 0.5, 0.5)
		// The numerator, the denominator and the quotient take a handful of roundings each, and the
		// clamp at 9 costs 1 - tanh(9) = 3e-8.
		if got, want := float64(v[0]), math.Tanh(float64(x)); math.Abs(got-want) > 6*eps32*math.Abs(want) {
			t.Fatalf("tanh(%v) is %v, want %v", x, got, want)
		}
		if got, want := float64(v[1]), 1/(1+math.Exp(-float64(x))); math.Abs(got-want) > 4*eps32 {
			t.Fatalf("sigmoid(%v) is %v, want %v", x, got, want)
		}
	}
	v := []float32{float32(math.NaN())}
	if squash(v, 1, 0); !math.IsNaN(float64(v[0])) {
		t.Errorf("tanh(NaN) is %v", v[0])
	}
}
