package model

import "math"

const (
	normEps      = 1e-5
	normMomentum = 0.1
)

// batchNorm is batch normalisation, an optional residual and ReLU in one:
// out = max(0, gamma*(y-mean)/sqrt(var+eps) + beta + res), per channel.
type batchNorm struct {
	channels     int
	grid         grid
	gamma, beta  *Param
	mean, spread *Buffer // running mean and unbiased variance

	y       []float32 // input, channels x grid.size
	mu, inv []float32 // of the batch: mean and 1/sqrt(var+eps)
}

func newBatchNorm(name string, channels int, g grid) *batchNorm {
	n := &batchNorm{
		channels: channels, grid: g,
		gamma: newParam(name+".weight", channels), beta: newParam(name+".bias", channels),
		mean:   &Buffer{name + ".running_mean", grow(nil, channels)},
		spread: &Buffer{name + ".running_var", grow(nil, channels)},
		mu:     grow(nil, channels), inv: grow(nil, channels),
	}
	fill(n.gamma.W, 1)
	fill(n.spread.X, 1)
	return n
}

// input is where the convolution puts channels x grid.size values; those between images are not read.
func (n *batchNorm) input(batch int) []float32 {
	n.y = grow(n.y, n.channels*n.grid.size(batch))
	return n.y
}

// forward normalises by the statistics of the batch and updates the running ones. It writes out, with
// zeros between images. res holds the residual of the first channels, in the same layout.
func (n *batchNorm) forward(batch int, res, out []float32) {
	size := n.grid.size(batch)
	count := float64(batch * n.grid.h * n.grid.w)
	for c := range n.channels {
		y := n.y[c*size:][:size]
		var sum, sq float64
		for b := range batch {
			sum += sumOf(n.grid.image(y, b))
		}
		mu := float32(sum / count)
		for b := range batch {
			sq += sumSquares(n.grid.image(y, b), mu)
		}
		inv := 1 / math.Sqrt(sq/count+normEps)
		n.mu[c], n.inv[c] = mu, float32(inv)
		n.mean.X[c] += normMomentum * (mu - n.mean.X[c])
		n.spread.X[c] += normMomentum * (float32(sq/max(1, count-1)) - n.spread.X[c])
		n.apply(batch, c, mu, float32(inv), res, out)
	}
}

// infer is forward by the running statistics, which stay as they are.
func (n *batchNorm) infer(batch int, res, out []float32) {
	for c := range n.channels {
		inv := 1 / math.Sqrt(float64(n.spread.X[c])+normEps)
		n.apply(batch, c, n.mean.X[c], float32(inv), res, out)
	}
}

func (n *batchNorm) apply(batch, c int, mu, inv float32, res, out []float32) {
	size := n.grid.size(batch)
	y, to := n.y[c*size:][:size], out[c*size:][:size]
	scale := n.gamma.W[c] * inv
	shift := n.beta.W[c] - mu*scale
	n.grid.zeroGaps(to, batch)
	hasRes := (c+1)*size <= len(res) // channels beyond have none
	for b := range batch {
		switch img := n.grid.image(to, b); {
		case math.IsNaN(float64(shift)): // the bit-wise ReLU below would hide a NaN
			fill(img, shift)
		case hasRes:
			scaleAddRelu(img, n.grid.image(y, b), n.grid.image(res[c*size:], b), scale, shift)
		default:
			scaleRelu(img, n.grid.image(y, b), scale, shift)
		}
	}
}

// backward adds to the gradients of gamma and beta and writes dy, the gradient of the input, with zeros
// between images. It clears g, the gradient of out, where out is 0: that is then the residual's gradient.
// dy may be g itself.
func (n *batchNorm) backward(batch int, out, g, dy []float32) {
	size := n.grid.size(batch)
	count := float64(batch * n.grid.h * n.grid.w)
	for c := range n.channels {
		at := c * size
		mu, inv := n.mu[c], n.inv[c]
		var sumG, sumGY float64
		for b := range batch {
			a, ay := maskSums(n.grid.image(g[at:], b), n.grid.image(out[at:], b), n.grid.image(n.y[at:], b), mu)
			sumG += a
			sumGY += ay
		}
		n.beta.G[c] += float32(sumG)
		n.gamma.G[c] += float32(sumGY * float64(inv))

		// dy = gamma*inv * (g - mean(g) - xhat*mean(g*xhat)), xhat = (y-mu)*inv
		scale := float64(n.gamma.W[c]) * float64(inv)
		slope := -scale * sumGY * float64(inv) * float64(inv) / count
		shift := -scale*sumG/count - slope*float64(mu)
		n.grid.zeroGaps(dy[at:][:size], batch)
		for b := range batch {
			combine(n.grid.image(dy[at:], b), n.grid.image(g[at:], b), n.grid.image(n.y[at:], b),
				float32(scale), float32(slope), float32(shift))
		}
	}
}

// sumOf is the sum of x, in four lanes of float32.
func sumOf(x []float32) float64 {
	var a, b, c, d float32
	for ; len(x) >= 4; x = x[4:] {
		a += x[0]
		b += x[1]
		c += x[2]
		d += x[3]
	}
	for _, v := range x {
		a += v
	}
	return float64(a+b) + float64(c+d)
}

// sumSquares is the sum of (x-mu)^2, in four lanes of float32.
func sumSquares(x []float32, mu float32) float64 {
	var a, b, c, d float32
	for ; len(x) >= 4; x = x[4:] {
		p, q, r, s := x[0]-mu, x[1]-mu, x[2]-mu, x[3]-mu
		a += p * p
		b += q * q
		c += r * r
		d += s * s
	}
	for _, v := range x {
		a += (v - mu) * (v - mu)
	}
	return float64(a+b) + float64(c+d)
}

// relu is max(0, v) without a branch that random data would mispredict; a NaN with its sign set is 0.
func relu(v float32) float32 {
	bits := math.Float32bits(v)
	return math.Float32frombits(bits &^ uint32(int32(bits)>>31))
}

// scaleRelu is out[i] = relu(y[i]*scale + shift).
func scaleRelu(out, y []float32, scale, shift float32) {
	y = y[:len(out)]
	for i := range out {
		out[i] = relu(y[i]*scale + shift)
	}
}

// scaleAddRelu is out[i] = relu(y[i]*scale + shift + res[i]).
func scaleAddRelu(out, y, res []float32, scale, shift float32) {
	y, res = y[:len(out)], res[:len(out)]
	for i := range out {
		out[i] = relu(y[i]*scale + shift + res[i])
	}
}

// maskSums clears g where out, which is never negative, is 0, and returns the sums of g and of
// g*(y-mu), each in two lanes of float32.
func maskSums(g, out, y []float32, mu float32) (sumG, sumGY float64) {
	out, y = out[:len(g)], y[:len(g)]
	var a, b, p, q float32
	i := 0
	for ; i+1 < len(g); i += 2 {
		u := math.Float32bits(g[i]) & uint32(-int32(math.Float32bits(out[i]))>>31)
		v := math.Float32bits(g[i+1]) & uint32(-int32(math.Float32bits(out[i+1]))>>31)
		s, t := math.Float32frombits(u), math.Float32frombits(v)
		g[i], g[i+1] = s, t
		a += s
		b += t
		p += s * (y[i] - mu)
		q += t * (y[i+1] - mu)
	}
	if i < len(g) {
		if out[i] == 0 {
			g[i] = 0
		}
		a += g[i]
		p += g[i] * (y[i] - mu)
	}
	return float64(a) + float64(b), float64(p) + float64(q)
}

// combine is dy[i] = scale*g[i] + slope*y[i] + shift.
func combine(dy, g, y []float32, scale, slope, shift float32) {
	g, y = g[:len(dy)], y[:len(dy)]
	for i := range dy {
		dy[i] = scale*g[i] + slope*y[i] + shift
	}
}
