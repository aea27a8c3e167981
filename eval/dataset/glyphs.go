package dataset

import (
	"context"
	"fmt"
	"image"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"unicode"

	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/gobolditalic"
	"golang.org/x/image/font/gofont/goitalic"
	"golang.org/x/image/font/gofont/gomedium"
	"golang.org/x/image/font/gofont/gomono"
	"golang.org/x/image/font/gofont/gomonobold"
	"golang.org/x/image/font/gofont/gomonobolditalic"
	"golang.org/x/image/font/gofont/gomonoitalic"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/gofont/gosmallcaps"
	"golang.org/x/image/font/gofont/gosmallcapsitalic"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
	"golang.org/x/image/vector"
)

// glyphClasses are the characters, in the order of their classes. Most have a near twin (2 Z, 5 S,
// 8 B, K R, 3 8, E B), and none turns into another when it is rotated.
const glyphClasses = "238B5SZEKR"

const (
	glyphSide  = 32 // pixels
	glyphTrain = 8_000
	glyphTest  = 2_000
	glyphChunk = 64 // images drawn at a time
)

// The variety of the images. It is set so that the default eval learns them in the time that it has: "gradpress eval --task
// resnet8-glyphs" gets dense to 99.9 % and gradient dropping to some points less. With ink of either polarity, half the contrast, more
// noise and smaller characters a ResNet-8 was below 25 % after as many views.
const (
	minHeight, maxHeight = 21, 27   // of the upright character, pixels
	maxStretch           = 0.15     // of the width, natural logarithm
	maxTurn              = 0.25     // radians
	maxShear             = 0.15     // horizontal shift per unit of height
	minContrast          = 100      // luma that the ink is darker than the background before noise, of 255
	minNoise, maxNoise   = 2.0, 12. // standard deviation of each channel
)

// Glyphs is a set of 32x32 colour images of ten letters and digits in eleven typefaces, turned,
// stretched and sheared, dark on uneven lighter backgrounds, both of any hue, with noise. Image i of a split has
// class i mod 10 and depends on Options.Seed, the split and i only. There are 8,000 images to
// train on and 2,000 to test.
func Glyphs(ctx context.Context, o Options) (*Images, error) {
	n, err := o.trainSize(glyphTrain)
	if err != nil {
		return nil, err
	}
	outlines, err := loadOutlines()
	if err != nil {
		return nil, err
	}
	d := &Images{Name: "glyphs", Classes: len(glyphClasses), C: 3, H: glyphSide, W: glyphSide,
		Train: newSplit(n), Test: newSplit(glyphTest)}
	progress := &tally{total: int64(n + glyphTest), report: o.Progress}
	for _, part := range []struct {
		split   ImageSplit
		purpose int
	}{{d.Train, purposeTrain}, {d.Test, purposeTest}} {
		if err := drawSplit(ctx, part.split, outlines, o.Seed, part.purpose, progress); err != nil {
			return nil, err
		}
	}
	d.measure()
	return d, nil
}

// newSplit is room for n images of 3 x 32 x 32.
func newSplit(n int) ImageSplit {
	return ImageSplit{X: make([]uint8, n*3*glyphSide*glyphSide), Y: make([]int32, n)}
}

// drawSplit draws all images of a split on all cores.
func drawSplit(ctx context.Context, split ImageSplit, outlines [][]sfnt.Segments, seed uint64, purpose int, progress *tally) error {
	chunks := make(chan int)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			p := newPainter(outlines)
			for first := range chunks {
				last := min(first+glyphChunk, split.Len())
				for i := first; i < last; i++ {
					class := i % len(glyphClasses)
					reseed(p.pcg, seed, purpose, i)
					p.draw(split.X[i*3*glyphSide*glyphSide:][:3*glyphSide*glyphSide], class)
					split.Y[i] = int32(class)
				}
				progress.add(int64(last - first))
			}
		})
	}
	defer workers.Wait()
	defer close(chunks)
	for first := 0; first < split.Len(); first += glyphChunk {
		select {
		case chunks <- first:
		case <-ctx.Done():
			return stopped(ctx, "glyphs")
		}
	}
	return nil
}

// loadOutlines reads the outline of each character in each typeface, faces x classes, at 1000
// pixels an em, with y growing downwards.
func loadOutlines() ([][]sfnt.Segments, error) {
	faces := [][]byte{goregular.TTF, gomedium.TTF, gobold.TTF, goitalic.TTF, gobolditalic.TTF, gomono.TTF,
		gomonobold.TTF, gomonoitalic.TTF, gomonobolditalic.TTF, gosmallcaps.TTF, gosmallcapsitalic.TTF}
	smallCaps := len(faces) - 2 // from here on lower case letters look like capitals
	outlines := make([][]sfnt.Segments, len(faces))
	var buf sfnt.Buffer
	for i, ttf := range faces {
		face, err := sfnt.Parse(ttf)
		if err != nil {
			return nil, fmt.Errorf("dataset: glyphs: typeface %d: %w", i, err)
		}
		for _, r := range glyphClasses {
			if i >= smallCaps {
				r = unicode.ToLower(r)
			}
			index, err := face.GlyphIndex(&buf, r)
			if err != nil || index == 0 {
				return nil, fmt.Errorf("dataset: glyphs: typeface %d has no %q: %w", i, r, err)
			}
			segments, err := face.LoadGlyph(&buf, index, fixed.I(1000), &sfnt.LoadGlyphOptions{})
			if err != nil {
				return nil, fmt.Errorf("dataset: glyphs: typeface %d, %q: %w", i, r, err)
			}
			outlines[i] = append(outlines[i], append(sfnt.Segments(nil), segments...))
		}
	}
	return outlines, nil
}

// painter draws images one after the other with the random numbers of pcg.
type painter struct {
	outlines [][]sfnt.Segments
	pcg      *rand.PCG
	rng      *rand.Rand
	raster   *vector.Rasterizer
	mask     *image.Alpha
}

func newPainter(outlines [][]sfnt.Segments) *painter {
	pcg := new(rand.PCG)
	return &painter{outlines: outlines, pcg: pcg, rng: rand.New(pcg), raster: vector.NewRasterizer(glyphSide, glyphSide),
		mask: image.NewAlpha(image.Rect(0, 0, glyphSide, glyphSide))}
}

// draw draws a random image of a class to dst, 3 x 32 x 32.
func (p *painter) draw(dst []uint8, class int) {
	p.outline(p.outlines[p.rng.IntN(len(p.outlines))][class])
	p.paint(dst, p.colours())
	p.noise(dst)
}

// between is uniform in [lo, hi).
func (p *painter) between(lo, hi float64) float64 { return lo + (hi-lo)*p.rng.Float64() }

// outline puts a character in a random pose, at a random place inside the image, and leaves its
// coverage in mask.
func (p *painter) outline(segments sfnt.Segments) {
	box := segments.Bounds()
	centreX, centreY := float32(box.Min.X+box.Max.X)/2, float32(box.Min.Y+box.Max.Y)/2
	tall := p.between(minHeight, maxHeight) / float64(box.Max.Y-box.Min.Y)
	wide := tall * math.Exp(p.between(-maxStretch, maxStretch))
	shear := p.between(-maxShear, maxShear)
	sin, cos := math.Sincos(p.between(-maxTurn, maxTurn))
	xx, xy := float32(cos*wide), float32((cos*shear-sin)*tall)
	yx, yy := float32(sin*wide), float32((sin*shear+cos)*tall)
	pose := func(q fixed.Point26_6) (x, y float32) {
		dx, dy := float32(q.X)-centreX, float32(q.Y)-centreY
		return xx*dx + xy*dy, yx*dx + yy*dy
	}

	// The box of all points, off the curves too, holds the character.
	const far = 1 << 20
	loX, loY, hiX, hiY := float32(far), float32(far), float32(-far), float32(-far)
	for _, s := range segments {
		for _, q := range s.Args[:points(s.Op)] {
			x, y := pose(q)
			loX, hiX = min(loX, x), max(hiX, x)
			loY, hiY = min(loY, y), max(hiY, y)
		}
	}
	shiftX, shiftY := p.place(loX, hiX), p.place(loY, hiY)

	p.raster.Reset(glyphSide, glyphSide)
	for _, s := range segments {
		x, y := pose(s.Args[0])
		x, y = x+shiftX, y+shiftY
		switch s.Op {
		case sfnt.SegmentOpMoveTo:
			p.raster.ClosePath()
			p.raster.MoveTo(x, y)
		case sfnt.SegmentOpLineTo:
			p.raster.LineTo(x, y)
		case sfnt.SegmentOpQuadTo:
			x2, y2 := pose(s.Args[1])
			p.raster.QuadTo(x, y, x2+shiftX, y2+shiftY)
		}
	}
	p.raster.ClosePath()
	clear(p.mask.Pix)
	p.raster.Draw(p.mask, p.mask.Bounds(), image.Opaque, image.Point{})
}

// points is the number of points of a segment. TrueType outlines have no cubic curves.
func points(op sfnt.SegmentOp) int {
	if op == sfnt.SegmentOpQuadTo {
		return 2
	}
	return 1
}

// place is a random shift of [lo, hi] to inside of the image, or to its middle if it is too long.
func (p *painter) place(lo, hi float32) float32 {
	free := glyphSide - (hi - lo)
	if free <= 0 {
		return free/2 - lo
	}
	return free*p.rng.Float32() - lo
}

type rgb [3]int

// luma is the brightness of a colour, 0 to 255 (ITU-R BT.601).
func (c rgb) luma() int { return (299*c[0] + 587*c[1] + 114*c[2]) / 1000 }

// palette is the colour of the character and the two ends of the background's range.
type palette struct{ ink, ground, ground2 rgb }

// colours draws a palette in which the ink is darker than the whole background.
func (p *painter) colours() palette {
	for {
		bits := p.rng.Uint64()
		var c [3]rgb
		for i := range 9 {
			c[i/3][i%3] = int(bits >> (7 * i) & 127 * 255 / 127)
		}
		if c[0].luma()+minContrast <= min(c[1].luma(), c[2].luma()) {
			return palette{c[0], c[1], c[2]}
		}
	}
}

// paint lays ink where mask is, over a background that goes from one of its colours to the other and
// back over 1, 2, 4 or 8 cells a side, with random weights at their corners.
func (p *painter) paint(dst []uint8, c palette) {
	const plane = glyphSide * glyphSide
	shift := 2 + p.rng.IntN(4) // cells are 1<<shift pixels wide
	cells, size := glyphSide>>shift, 1<<shift
	var weight [9][9]int // 0 to 255
	for i := range cells + 1 {
		for j := range cells + 1 {
			weight[i][j] = p.rng.IntN(256)
		}
	}
	for y := range glyphSide {
		row, fy := y>>shift, y&(size-1)
		for x := range glyphSide {
			col, fx := x>>shift, x&(size-1)
			above := weight[row][col]*(size-fx) + weight[row][col+1]*fx
			below := weight[row+1][col]*(size-fx) + weight[row+1][col+1]*fx
			w := (above*(size-fy) + below*fy) >> (2 * shift)
			ink := int(p.mask.Pix[y*glyphSide+x])
			for k := range 3 {
				ground := (c.ground[k]*(255-w) + c.ground2[k]*w) / 255
				dst[k*plane+y*glyphSide+x] = uint8((ground*(255-ink) + c.ink[k]*ink) / 255)
			}
		}
	}
}

// noise adds to each value the scaled sum of two random bytes, which is nearly bell-shaped.
func (p *painter) noise(dst []uint8) {
	const sumDev = 104.5                                         // standard deviation of the sum, sqrt(2 * (256^2-1) / 12)
	scale := int(p.between(minNoise, maxNoise) * 65536 / sumDev) // 16 binary places
	for i := 0; i < len(dst); i += 4 {
		bits := p.rng.Uint64()
		for j := range 4 {
			sum := int(bits&255) + int(bits>>8&255) - 255
			bits >>= 16
			dst[i+j] = uint8(min(max(int(dst[i+j])+sum*scale>>16, 0), 255))
		}
	}
}
