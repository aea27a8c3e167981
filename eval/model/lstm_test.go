package model

import (
	"math"
	"testing"
)

// slowLSTM is the definition, in float64: h and c of one sequence after each step.
func slowLSTM(l *lstm, xs [][]float32, h, c []float64) (hs, cs [][]float64) {
	sigmoid := func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	for _, x := range xs {
		gate := func(which, k int) float64 {
			row := which*l.hidden + k
			z := float64(l.bias.W[row])
			for i, v := range x {
				z += float64(l.wx.W[row*l.in+i]) * float64(v)
			}
			for i, v := range h {
				z += float64(l.wh.W[row*l.hidden+i]) * v
			}
			return z
		}
		h2, c2 := make([]float64, l.hidden), make([]float64, l.hidden)
		for k := range h2 {
			c2[k] = sigmoid(gate(1, k))*c[k] + sigmoid(gate(0, k))*math.Tanh(gate(2, k))
			h2[k] = sigmoid(gate(3, k)) * math.Tanh(c2[k])
		}
		h, c = h2, c2
		hs, cs = append(hs, h), append(cs, c)
	}
	return hs, cs
}

func TestLSTMAgainstDefinition(t *testing.T) {
	const steps, batch, in, hidden = 6, 3, 4, 5
	l := newLSTM("lstm", in, hidden)
	l.init(stream(1, 0))
	fillNormal(l.bias.W, 1, stream(1, 1))
	x := normals(steps*batch*in, 1, 2)
	copy(l.input(steps, batch), x)
	s := lstmState{normals(batch*hidden, 0.5, 3), normals(batch*hidden, 1, 4)}
	h0, c0 := append([]float32(nil), s.h...), append([]float32(nil), s.c...)
	l.forward(steps, batch, &s)
	for b := range batch {
		var xs [][]float32
		h, c := make([]float64, hidden), make([]float64, hidden)
		for k := range hidden {
			h[k], c[k] = float64(h0[b*hidden+k]), float64(c0[b*hidden+k])
		}
		for step := range steps {
			xs = append(xs, x[(step*batch+b)*in:][:in])
		}
		hs, cs := slowLSTM(l, xs, h, c)
		// About 20 roundings a step of values up to about 4, and the error of c adds up.
		const tol = 20 * steps * 4 * eps32
		for step := range steps {
			for k, want := range hs[step] {
				if got := float64(l.output(steps, batch)[(step*batch+b)*hidden+k]); math.Abs(got-want) > tol {
					t.Fatalf("h[%d] of row %d after step %d is %v, want %v", k, b, step, got, want)
				}
			}
		}
		for k := range hidden {
			if got, want := float64(s.c[b*hidden+k]), cs[steps-1][k]; math.Abs(got-want) > tol {
				t.Fatalf("carried c[%d] of row %d is %v, want %v", k, b, got, want)
			}
			if got, want := float64(s.h[b*hidden+k]), hs[steps-1][k]; math.Abs(got-want) > tol {
				t.Fatalf("carried h[%d] of row %d is %v, want %v", k, b, got, want)
			}
		}
	}
}

func TestLSTMGradients(t *testing.T) {
	const steps, batch, in, hidden = 5, 3, 4, 6
	l := newLSTM("lstm", in, hidden)
	l.init(stream(1, 0))
	x, r := normals(steps*batch*in, 1, 2), normals(steps*batch*hidden, 1, 3)
	h0, c0 := normals(batch*hidden, 0.5, 4), normals(batch*hidden, 1, 5)
	loss := func() float64 {
		copy(l.input(steps, batch), x)
		l.forward(steps, batch, &lstmState{append([]float32(nil), h0...), append([]float32(nil), c0...)})
		return weigh(r, l.output(steps, batch))
	}
	loss()
	dx := make([]float32, len(x))
	noise := weighNoise(r, l.output(steps, batch), 20)
	l.backwardWeight(steps, batch, append([]float32(nil), r...))
	l.backwardInput(steps, batch, dx)
	checkGradients(t, []variable{
		{"wx", l.wx.W, l.wx.G}, {"wh", l.wh.W, l.wh.G}, {"bias", l.bias.W, l.bias.G}, {"input", x, dx},
	}, noise, loss)
}
