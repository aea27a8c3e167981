package model

// grid is how the images of a batch lie in the row of one channel: each image's h*w pixels in one
// run, a row of w zeros before the first and one after every image. Neighbours share a row of
// zeros, and the one above or below an image is the padding of a convolution.
type grid struct{ h, w int }

// size is the length of one channel's row.
func (g grid) size(batch int) int { return (1 + batch*(g.h+1)) * g.w }

// at is where image b begins.
func (g grid) at(b int) int { return (1 + b*(g.h+1)) * g.w }

// span is the length from the first pixel of an image to the last of the n-th image from there.
func (g grid) span(n int) int { return (n*(g.h+1) - 1) * g.w }

// image is the pixels of image b in a channel's row.
func (g grid) image(row []float32, b int) []float32 { return row[g.at(b):][:g.h*g.w] }

// zeroGaps clears the rows around the images.
func (g grid) zeroGaps(row []float32, batch int) {
	for b := range batch + 1 {
		clear(row[b*(g.h+1)*g.w:][:g.w])
	}
}

// halved is the grid behind a 3x3 convolution of stride 2 and padding 1.
func (g grid) halved() grid { return grid{(g.h + 1) / 2, (g.w + 1) / 2} }
