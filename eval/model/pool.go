package model

// pool is the mean over each image's pixels: channels x grid.size becomes batch x channels.
type pool struct {
	channels int
	grid     grid

	x []float32 // input
}

// input is where whoever comes before puts channels x grid.size values.
func (p *pool) input(batch int) []float32 {
	p.x = grow(p.x, p.channels*p.grid.size(batch))
	return p.x
}

func (p *pool) forward(batch int, y []float32) {
	size := p.grid.size(batch)
	for c := range p.channels {
		for b := range batch {
			img := p.grid.image(p.x[c*size:], b)
			y[b*p.channels+c] = float32(sumOf(img) / float64(len(img)))
		}
	}
}

// backward writes channels x grid.size values; those between images are undefined.
func (p *pool) backward(batch int, dy, dx []float32) {
	size := p.grid.size(batch)
	for c := range p.channels {
		for b := range batch {
			img := p.grid.image(dx[c*size:], b)
			fill(img, dy[b*p.channels+c]/float32(len(img)))
		}
	}
}
