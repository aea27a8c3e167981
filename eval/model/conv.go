package model

import (
	"math"
	"math/rand/v2"

	"github.com/gradpress/gradpress/eval/model/blas"
)

// conv is a 3x3 convolution with padding 1, stride 1 or 2 and no bias.
//
// It is three matrix products, one for each kernel row kh, over planes of the input that hold, for
// each kernel column kw, every channel shifted by kw-1: the shift by kh-1 rows is then only an offset,
// because images have rows of zeros between them. At stride 2 the planes hold the even and the odd
// input rows apart, and every second column. That copies 2 values (at stride 2: 1.5) for each of the
// input where im2col copies 9 (2.25), and leaves matrices that stay in cache.
type conv struct {
	cin, cout, stride int
	in, out           grid
	weight            *Param // cout x 3 x 3 x cin

	wino *winograd // does all of that instead, or nil; it uses centre only

	x       []float32 // stride planes of 3 x cin x out.size: parity of the input row, kw, channel
	src     []float32 // stride 2: the input, cin x in.size
	scratch []float32 // gradient of the planes for a few images
}

func newConv(name string, cin, cout, stride int, in grid) *conv {
	c := &conv{cin: cin, cout: cout, stride: stride, in: in, out: in, weight: newParam(name+".weight", cout, 3, 3, cin)}
	if stride == 2 {
		c.out = in.halved()
	} else if blas.Name() == "gonum" && cin >= 8 { // of fewer channels the products are too small to save on
		c.wino = newWinograd(cin, cout, in, c.weight)
	}
	return c
}

// init draws from He's normal distribution for ReLU networks, by fan-out: variance 2 / (9*cout).
func (c *conv) init(rng *rand.Rand) {
	fillNormal(c.weight.W, math.Sqrt(2/float64(9*c.cout)), rng)
}

// spanImages is how many images one product covers: about a thousand columns, which keeps a
// product's operands in the second-level cache and its rows long.
func (c *conv) spanImages() int { return max(1, 1024/(c.out.h*c.out.w)) }

// tap is where kernel row kh finds its input: the plane, and the offset of its column for the
// first output pixel from that pixel.
func (c *conv) tap(kh int) (plane, shift int) {
	if c.stride == 1 {
		return 0, (kh - 1) * c.out.w
	}
	if kh == 1 {
		return 0, 0
	}
	if kh == 0 {
		return 1, -c.out.w // the odd row 2y-1 is the one before 2y+1
	}
	return 1, 0
}

// input is where whoever comes before puts cin x in.size values, with zeros around the images.
func (c *conv) input(batch int) []float32 {
	c.x = grow(c.x, c.stride*3*c.cin*c.out.size(batch))
	if c.stride == 1 {
		return c.centre(batch)
	}
	c.src = grow(c.src, c.cin*c.in.size(batch))
	return c.src
}

// centre is the input at the centre of each output's window, cin x out.size.
func (c *conv) centre(batch int) []float32 {
	n := c.cin * c.out.size(batch)
	return c.x[n : 2*n]
}

// forward writes cout x out.size values; those between images are undefined.
func (c *conv) forward(batch int, y []float32) {
	switch {
	case c.wino != nil:
		c.wino.forward(batch, c.centre(batch), y)
		return
	case c.stride == 1:
		c.shift(batch)
	default:
		c.split(batch)
	}
	size, taps := c.out.size(batch), 3*c.cin
	for b := 0; b < batch; b += c.spanImages() {
		n := c.out.span(min(c.spanImages(), batch-b))
		at := c.out.at(b)
		beta := float32(0)
		for kh := range 3 {
			plane, shift := c.tap(kh)
			blas.Gemm(false, false, c.cout, n, taps, 1, c.weight.W[kh*taps:], 3*taps,
				c.x[plane*taps*size+at+shift:], size, beta, y[at:], size)
			beta = 1
		}
	}
}

// shift fills the outer two of the three planes of stride 1 from the inner one.
func (c *conv) shift(batch int) {
	size, w := c.out.size(batch), c.out.w
	left, mid, right := c.x[:c.cin*size], c.centre(batch), c.x[2*c.cin*size:]
	copy(left[1:], mid)
	copy(right, mid[1:])
	for i := 0; i < c.cin*size; i += w {
		left[i] = 0
		right[i+w-1] = 0
	}
}

// split fills the planes of stride 2 from src.
func (c *conv) split(batch int) {
	size, srcSize, out := c.out.size(batch), c.in.size(batch), c.out
	for parity := range 2 {
		for ch := range c.cin {
			src := c.src[ch*srcSize:][:srcSize]
			var to [3][]float32
			for kw := range 3 {
				to[kw] = c.x[((parity*3+kw)*c.cin+ch)*size:][:size]
				out.zeroGaps(to[kw], batch)
			}
			for b := range batch {
				img := c.in.image(src, b)
				for y := range out.h {
					at := out.at(b) + y*out.w
					left, mid, right := to[0][at:][:out.w], to[1][at:][:out.w], to[2][at:][:out.w]
					if row := 2*y + parity; row < c.in.h {
						deal(img[row*c.in.w:][:c.in.w], left, mid, right)
					} else {
						clear(left)
						clear(mid)
						clear(right)
					}
				}
			}
		}
	}
}

// deal is mid[i] = row[2*i], right[i] = row[2*i+1], left[i] = row[2*i-1], with zeros outside row.
func deal(row, left, mid, right []float32) {
	left[0] = 0
	pairs := len(row) / 2
	right, next := right[:pairs], left[1:]
	for i := range right {
		even, odd := row[2*i], row[2*i+1]
		mid[i], right[i] = even, odd
		if i < len(next) {
			next[i] = odd
		}
	}
	if pairs < len(mid) { // an odd width ends on an even column
		mid[pairs] = row[2*pairs]
		right[:pairs+1][pairs] = 0
	}
}

// backwardWeight adds to the weight's gradient. dy is cout x out.size with zeros between images.
func (c *conv) backwardWeight(batch int, dy []float32) {
	if c.wino != nil {
		c.wino.backwardWeight(batch, dy)
		return
	}
	size, taps := c.out.size(batch), 3*c.cin
	for b := 0; b < batch; b += c.spanImages() {
		n := c.out.span(min(c.spanImages(), batch-b))
		at := c.out.at(b)
		for kh := range 3 {
			plane, shift := c.tap(kh)
			blas.Gemm(false, true, c.cout, taps, n, 1, dy[at:], size,
				c.x[plane*taps*size+at+shift:], size, 1, c.weight.G[kh*taps:], 3*taps)
		}
	}
}

// backwardInput writes the input's gradient, cin x in.size; values between images are undefined.
// skip, if not nil, is more gradient for what centre returned: its first cin x out.size values.
func (c *conv) backwardInput(batch int, dy, skip, dx []float32) {
	if c.wino != nil {
		c.wino.backwardInput(batch, skip, dx)
		return
	}
	size, taps, w := c.out.size(batch), 3*c.cin, c.out.w
	for b := 0; b < batch; b += c.spanImages() {
		images := min(c.spanImages(), batch-b)
		n := c.out.span(images)
		at := c.out.at(b)
		row := n + 2*w
		c.scratch = grow(c.scratch, c.stride*taps*row)
		for r := 0; r < len(c.scratch); r += row {
			clear(c.scratch[r:][:w])
			clear(c.scratch[r+row-w:][:w])
		}
		// Kernel row 1 writes all of plane 0 and row 2 all of plane 1 (there is one at stride 2 only);
		// the others then add.
		for _, kh := range [3]int{1, 2, 0} {
			plane, shift := c.tap(kh)
			beta := float32(1)
			if kh == 1 || kh == 2 && plane == 1 {
				beta = 0
			}
			blas.Gemm(true, false, taps, n, c.cout, 1, c.weight.W[kh*taps:], 3*taps,
				dy[at:], size, beta, c.scratch[plane*taps*row+w+shift:], row)
		}
		if skip != nil {
			for ch := range c.cin {
				blas.Axpy(1, skip[ch*size+at:][:n], c.scratch[(c.cin+ch)*row+w:][:n])
			}
		}
		if c.stride == 1 {
			c.unshift(batch, b, images, dx)
		} else {
			c.unsplit(batch, b, images, dx)
		}
	}
}

// unshift is the adjoint of shift for a few images from b on.
func (c *conv) unshift(batch, b, images int, dx []float32) {
	size, w := c.out.size(batch), c.out.w
	n := c.out.span(images)
	row := n + 2*w
	for ch := range c.cin {
		left := c.scratch[ch*row+w:][:n+1]
		mid := c.scratch[(c.cin+ch)*row+w:][:n]
		right := c.scratch[(2*c.cin+ch)*row+w-1:][:n+1]
		for i := 0; i < n; i += w { // what was shifted in from outside has no source
			left[i] = 0
			right[i+w] = 0
		}
		right[0] = 0
		left[n] = 0
		to := dx[ch*size+c.out.at(b):][:n]
		left, right = left[1:][:n], right[:n]
		for i := range to {
			to[i] = left[i] + mid[i] + right[i]
		}
	}
}

// unsplit is the adjoint of split for a few images from b on.
func (c *conv) unsplit(batch, b, images int, dx []float32) {
	srcSize, out := c.in.size(batch), c.out
	row := out.span(images) + 2*out.w
	for ch := range c.cin {
		for i := range images {
			img := c.in.image(dx[ch*srcSize:], b+i)
			for r := range c.in.h {
				at := out.at(i) + r/2*out.w
				plane := c.scratch[(r%2*3*c.cin+ch)*row:]
				left := plane[at:][:out.w]
				mid := plane[c.cin*row+at:][:out.w]
				right := plane[2*c.cin*row+at:][:out.w]
				gather(img[r*c.in.w:][:c.in.w], left, mid, right)
			}
		}
	}
}

// gather is the adjoint of deal: row[2*i] = mid[i], row[2*i+1] = right[i] + left[i+1].
func gather(row, left, mid, right []float32) {
	last := len(mid) - 1
	for i := range last {
		row[2*i], row[2*i+1] = mid[i], right[i]+left[i+1]
	}
	row[2*last] = mid[last]
	if 2*last+1 < len(row) {
		row[2*last+1] = right[last]
	}
}
