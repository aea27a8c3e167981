package dataset

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"runtime"
	"slices"
	"testing"
)

func TestGlyphsAreTheirSeed(t *testing.T) {
	full, err := Glyphs(t.Context(), Options{Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	if full.Train.Len() != 8000 || full.Test.Len() != 2000 || len(full.Train.X) != 8000*3*32*32 || len(full.Test.X) != 2000*3*32*32 {
		t.Fatalf("%d and %d images", full.Train.Len(), full.Test.Len())
	}
	if full.Mirror {
		t.Error("letters must not be mirrored")
	}
	for _, split := range []ImageSplit{full.Train, full.Test} {
		counts := make([]int, full.Classes)
		for _, y := range split.Y {
			counts[y]++
		}
		if slices.Min(counts) != slices.Max(counts) {
			t.Errorf("classes have %v images", counts)
		}
	}

	var calls []int64
	short, err := Glyphs(t.Context(), Options{Seed: 3, TrainLimit: 137, Progress: func(done, total int64) {
		if total != 2137 {
			t.Errorf("progress of %d, want 2137", total)
		}
		calls = append(calls, done)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(short.Train.X, full.Train.X[:137*3072]) || !slices.Equal(short.Test.X, full.Test.X) {
		t.Error("a limit changes more than the length")
	}
	if !slices.IsSorted(calls) || calls[len(calls)-1] != 2137 {
		t.Errorf("progress went %v", calls)
	}

	other, err := Glyphs(t.Context(), Options{Seed: 4, TrainLimit: 137})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 137 {
		x := short.Train.X[i*3072:][:3072]
		if slices.Equal(x, other.Train.X[i*3072:][:3072]) || slices.Equal(x, short.Test.X[i*3072:][:3072]) {
			t.Fatalf("image %d is the same with another seed or in the other split", i)
		}
		if next := full.Train.X[(i+10)*3072:][:3072]; slices.Equal(x, next) {
			t.Fatalf("images %d and %d are the same", i, i+10)
		}
	}
}

// Accuracies are only comparable between versions that draw the same images. Other processors
// may round an outline's points differently, and so a pixel here and there.
func TestGeneratedDataIsPinned(t *testing.T) {
	hash := sha256.New()
	text, err := Markov(t.Context(), Options{TrainLimit: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range text.Train {
		hash.Write([]byte{byte(v)})
	}
	if got, want := hex.EncodeToString(hash.Sum(nil)[:8]), "44e20e9e29d164d1"; got != want {
		t.Errorf("markov: hash %s, want %s: the data changed, and recorded losses with it", got, want)
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("glyphs: the hash is of images drawn on amd64")
	}
	d, err := Glyphs(t.Context(), Options{TrainLimit: 100})
	if err != nil {
		t.Fatal(err)
	}
	hash.Reset()
	hash.Write(d.Train.X)
	hash.Write(d.Test.X)
	if got, want := hex.EncodeToString(hash.Sum(nil)[:8]), "ea663ab6b7219282"; got != want {
		t.Errorf("glyphs: hash %s, want %s: the data changed, and recorded accuracies with it", got, want)
	}
}

// Before the noise all ink is darker than all ground, and every character is there and inside.
func TestGlyphsAreReadable(t *testing.T) {
	outlines, err := loadOutlines()
	if err != nil {
		t.Fatal(err)
	}
	p := newPainter(outlines)
	dst := make([]uint8, 3*1024)
	for i := range 2000 {
		reseed(p.pcg, 5, purposeTrain, i)
		p.outline(outlines[i%len(outlines)][i/len(outlines)%len(glyphClasses)])
		p.paint(dst, p.colours())
		lightestInk, darkestGround, covered := -1, 256, 0
		for at, cover := range p.mask.Pix {
			covered += int(cover)
			luma := rgb{int(dst[at]), int(dst[1024+at]), int(dst[2048+at])}.luma()
			switch cover {
			case 255:
				lightestInk = max(lightestInk, luma)
			case 0:
				darkestGround = min(darkestGround, luma)
			}
		}
		// Rounding down to whole colours and lumas takes less than 2 from the ground.
		if lightestInk >= 0 && darkestGround-lightestInk < minContrast-2 {
			t.Errorf("image %d: ink up to %d, ground from %d", i, lightestInk, darkestGround)
		}
		// The thinnest stroke, of 1/14 of the height, along the smallest height and width.
		const thin = minHeight * minHeight / 14
		if covered < thin*255 {
			t.Errorf("image %d: ink covers %d pixels", i, covered/255)
		}
	}
}

func TestPlaceKeepsInside(t *testing.T) {
	p := newPainter(nil)
	for i := range 1000 {
		reseed(p.pcg, 1, purposeTest, i)
		lo := float32(p.between(-40, 40))
		hi := lo + float32(p.between(0, 40))
		shift := p.place(lo, hi)
		// Sums of numbers below 128 round by less than 128 eps, three of them.
		const tol = 3 * 128 * eps32
		left, right := lo+shift, glyphSide-(hi+shift)
		inside := left >= -tol && right >= -tol
		centred := max(left-right, right-left) <= 2*tol
		if fits := hi-lo <= glyphSide; fits && !inside || !fits && !centred {
			t.Errorf("[%g, %g] was moved to [%g, %g]", lo, hi, lo+shift, hi+shift)
		}
	}
}

func TestNoiseHasItsDeviation(t *testing.T) {
	p := newPainter(nil)
	x := make([]uint8, 3*1024)
	n := float64(len(x))
	for i := range 200 {
		for at := range x {
			x[at] = 128
		}
		reseed(p.pcg, 1, purposeTest, i)
		p.noise(x)
		sum, squares := 0.0, 0.0
		for _, v := range x {
			sum += float64(v) - 128
			squares += (float64(v) - 128) * (float64(v) - 128)
		}
		mean := sum / n
		dev := math.Sqrt(squares/n - mean*mean)
		// Rounding down moves the mean by -1/2, or less with little noise, and adds a variance below 1/4. An
		// estimate is off by five of its standard errors once in a million times.
		if math.Abs(mean+0.5) > 0.5+5*maxNoise/math.Sqrt(n) {
			t.Errorf("image %d: the noise has mean %g", i, mean)
		}
		slack := 1 + 5/math.Sqrt(2*n)
		if dev < minNoise/slack || dev > math.Sqrt(maxNoise*maxNoise+0.25)*slack {
			t.Errorf("image %d: the noise has deviation %g, want %g to %g", i, dev, minNoise, maxNoise)
		}
	}
}

func BenchmarkGlyph(b *testing.B) {
	outlines, err := loadOutlines()
	if err != nil {
		b.Fatal(err)
	}
	p := newPainter(outlines)
	dst := make([]uint8, 3*1024)
	b.SetBytes(int64(len(dst)))
	for i := 0; b.Loop(); i++ {
		reseed(p.pcg, 1, purposeTrain, i)
		p.draw(dst, i%len(glyphClasses))
	}
}
