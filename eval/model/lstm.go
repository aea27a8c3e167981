package model

import (
	"math/rand/v2"

	"github.com/gradpress/gradpress/eval/model/blas"
)

// lstm is one LSTM layer over T steps of a batch, time first. The gates are laid out i, f, g, o:
//
//	z = Wx*x + Wh*h' + b;  c = sigmoid(f)*c' + sigmoid(i)*tanh(g);  h = sigmoid(o)*tanh(c)
//
// with h' and c' of the step before.
type lstm struct {
	in, hidden int
	wx, wh     *Param // 4*hidden x in, 4*hidden x hidden
	bias       *Param // 4*hidden

	x     []float32 // input, T x batch x in
	gates []float32 // T x batch x 4*hidden: z, then the activated gates, then the gradient of z
	c, h  []float32 // T+1 x batch x hidden; the first is the state before the first step
	tanhC []float32 // T x batch x hidden
	dc    []float32 // batch x hidden
}

// lstmState is h and c, batch x hidden, after the last step of a batch.
type lstmState struct{ h, c []float32 }

// reset makes the state zero for whatever batch comes next.
func (s *lstmState) reset() { s.h, s.c = s.h[:0], s.c[:0] }

func newLSTM(name string, in, hidden int) *lstm {
	return &lstm{
		in: in, hidden: hidden,
		wx:   newParam(name+".weight_ih", 4*hidden, in),
		wh:   newParam(name+".weight_hh", 4*hidden, hidden),
		bias: newParam(name+".bias", 4*hidden),
	}
}

// init draws the weights uniformly from +-1/sqrt(fan-in). The bias is 1 for the forget gates, so that
// state is kept at first, and 0 for the others.
func (l *lstm) init(rng *rand.Rand) {
	fillUniform(l.wx.W, bound(l.in), rng)
	fillUniform(l.wh.W, bound(l.hidden), rng)
	fill(l.bias.W[l.hidden:2*l.hidden], 1)
}

// input is where whoever comes before puts steps x batch x in values.
func (l *lstm) input(steps, batch int) []float32 {
	l.x = grow(l.x, steps*batch*l.in)
	return l.x
}

// output is h of all steps, steps x batch x hidden.
func (l *lstm) output(steps, batch int) []float32 {
	n := batch * l.hidden
	return l.h[n : (steps+1)*n]
}

// forward runs from state s, which it moves on. A state of another batch size counts as zero.
func (l *lstm) forward(steps, batch int, s *lstmState) {
	n, z := batch*l.hidden, 4*l.hidden
	l.h, l.c = grow(l.h, (steps+1)*n), grow(l.c, (steps+1)*n)
	l.gates, l.tanhC = grow(l.gates, 4*steps*n), grow(l.tanhC, steps*n)
	if len(s.h) != n {
		s.h, s.c = grow(s.h, n), grow(s.c, n)
		clear(s.h)
		clear(s.c)
	}
	copy(l.h, s.h)
	copy(l.c, s.c)
	for r := 0; r < len(l.gates); r += z {
		copy(l.gates[r:], l.bias.W)
	}
	blas.Gemm(false, true, steps*batch, z, l.in, 1, l.x, l.in, l.wx.W, l.in, 1, l.gates, z)
	for t := range steps {
		gates := l.gates[4*t*n:][:4*n]
		blas.Gemm(false, true, batch, z, l.hidden, 1, l.h[t*n:], l.hidden, l.wh.W, l.hidden, 1, gates, z)
		for b := range batch {
			at := t*n + b*l.hidden
			step(gates[b*z:][:z], l.c[at:][:l.hidden], l.c[at+n:][:l.hidden], l.tanhC[at:][:l.hidden], l.h[at+n:][:l.hidden])
		}
	}
	copy(s.h, l.h[steps*n:])
	copy(s.c, l.c[steps*n:])
}

// step activates one row of gates and computes c, tanh(c) and h from the c before.
func step(gates, before, c, tanhC, h []float32) {
	n := len(c)
	squash(gates[:2*n], 0.5, 0.5)
	squash(gates[2*n:3*n], 1, 0)
	squash(gates[3*n:], 0.5, 0.5)
	i, f, g, o := gates[:n], gates[n:][:n], gates[2*n:][:n], gates[3*n:][:n]
	before, tanhC, h = before[:n], tanhC[:n], h[:n]
	for k := range c {
		c[k] = f[k]*before[k] + i[k]*g[k]
	}
	copy(tanhC, c)
	squash(tanhC, 1, 0)
	for k := range h {
		h[k] = o[k] * tanhC[k]
	}
}

// backwardWeight adds to the gradients of wx, wh and bias, and leaves the gradient of z in gates.
// dh is the gradient of output; it is overwritten. No gradient flows into the state before the first
// step: backpropagation through time is truncated there.
func (l *lstm) backwardWeight(steps, batch int, dh []float32) {
	n, z := batch*l.hidden, 4*l.hidden
	l.dc = grow(l.dc, n)
	clear(l.dc)
	for t := steps - 1; t >= 0; t-- {
		gates := l.gates[4*t*n:][:4*n]
		for b := range batch {
			at := t*n + b*l.hidden
			stepBack(gates[b*z:][:z], l.c[at:][:l.hidden], l.tanhC[at:][:l.hidden], dh[at:][:l.hidden], l.dc[b*l.hidden:][:l.hidden])
		}
		if t > 0 {
			blas.Gemm(false, false, batch, l.hidden, z, 1, gates, z, l.wh.W, l.hidden, 1, dh[(t-1)*n:], l.hidden)
		}
	}
	rows := steps * batch
	addRows(l.bias.G, l.gates)
	blas.Gemm(true, false, z, l.hidden, rows, 1, l.gates, z, l.h, l.hidden, 1, l.wh.G, l.hidden)
	blas.Gemm(true, false, z, l.in, rows, 1, l.gates, z, l.x, l.in, 1, l.wx.G, l.in)
}

// stepBack replaces one row of activated gates by the gradient of z, and dc, the gradient of c, by
// that of the c before.
func stepBack(gates, before, tanhC, dh, dc []float32) {
	n := len(dc)
	i, f, g, o := gates[:n], gates[n:][:n], gates[2*n:][:n], gates[3*n:][:n]
	before, tanhC, dh = before[:n], tanhC[:n], dh[:n]
	for k := range dc {
		ik, fk, gk, ok, u := i[k], f[k], g[k], o[k], tanhC[k]
		d := dc[k] + dh[k]*ok*(1-u*u)
		i[k] = d * gk * ik * (1 - ik)
		f[k] = d * before[k] * fk * (1 - fk)
		g[k] = d * ik * (1 - gk*gk)
		o[k] = dh[k] * u * ok * (1 - ok)
		dc[k] = d * fk
	}
}

// backwardInput writes the input's gradient, steps x batch x in.
func (l *lstm) backwardInput(steps, batch int, dx []float32) {
	z := 4 * l.hidden
	blas.Gemm(false, false, steps*batch, l.in, z, 1, l.gates, z, l.wx.W, l.in, 0, dx, l.in)
}

// squash is x[i] = a*tanh(a*x[i]) + b: tanh for a, b = 1, 0 and 1/(1+exp(-x)) for 1/2, 1/2.
//
// The rational approximation of tanh is that of Eigen's generic_fast_tanh_float, a few units in the last
// place off and several times faster than math.Tanh.
func squash(x []float32, a, b float32) {
	for i, v := range x {
		v *= a
		if v > 9 {
			v = 9
		}
		if v < -9 {
			v = -9
		}
		s := v * v
		p := s*-2.76076847742355e-16 + 2.00018790482477e-13
		p = p*s - 8.60467152213735e-11
		p = p*s + 5.12229709037114e-08
		p = p*s + 1.48572235717979e-05
		p = p*s + 6.37261928875436e-04
		p = p*s + 4.89352455891786e-03
		q := s*1.19825839466702e-06 + 1.18534705686654e-04
		q = q*s + 2.26843463243900e-03
		q = q*s + 4.89352518554385e-03
		x[i] = a*(v*p/q) + b
	}
}
