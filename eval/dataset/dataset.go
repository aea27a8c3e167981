// Package dataset holds the data that the convergence evals train on: two generated sets, which
// need no files and no network, and two well-known ones, which are read from disk or fetched once.
//
//	Glyphs       32x32 colour images of ten letters and digits, drawn on demand
//	CIFAR10      32x32 photographs of ten classes
//	Markov       text from a random source whose entropy rate is known exactly
//	Shakespeare  the 1.1 MB of plays known as tiny shakespeare, by character
//
// Everything generated is a function of Options.Seed alone. Sampler and Streams deal the data
// out to the workers of a data-parallel run, so that N workers with batch b see together
// what one worker with batch N*b would see.
package dataset

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
)

// Options are common to all sets; the zero value asks for the whole set with seed 0.
type Options struct {
	// Dir is where the files of CIFAR10 and Shakespeare are; nothing is fetched then. With "" they
	// are looked for in gradpress under os.UserCacheDir, and fetched into it where missing.
	Dir string
	// Seed decides what is generated. Sets that are read from files do not use it.
	Seed uint64
	// TrainLimit keeps only the first images or tokens of the train split; 0 keeps all.
	TrainLimit int
	// Progress, if set, is told how much of the work is done: bytes while fetching, images while
	// drawing or decoding. It is never called by two goroutines at once.
	Progress func(done, total int64)
}

// trainSize is the size of a train split of full items under the limit.
func (o Options) trainSize(full int) (int, error) {
	if o.TrainLimit < 0 {
		return 0, fmt.Errorf("dataset: TrainLimit is %d; it must be 0 (all) or positive", o.TrainLimit)
	}
	if o.TrainLimit == 0 {
		return full, nil
	}
	return min(o.TrainLimit, full), nil
}

// place is the folder that holds the files, and whether missing ones may be fetched into it.
func (o Options) place() (dir string, fetch bool, err error) {
	if o.Dir != "" {
		return o.Dir, false, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", false, fmt.Errorf("dataset: no cache directory, set Options.Dir instead: %w", err)
	}
	return filepath.Join(cache, "gradpress"), true, nil
}

// isFile reports whether path is there; an error means that it could not be told.
func isFile(path string) (bool, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("dataset: %w", err)
	}
	if info.IsDir() {
		return false, fmt.Errorf("dataset: %s is a directory, expected a file", path)
	}
	return true, nil
}

// Images is a labelled set of images of one size.
type Images struct {
	Name             string
	Classes, C, H, W int
	Train, Test      ImageSplit
	// Mean and Std are those of each channel over the train split, in units of the 0..255 pixels.
	Mean, Std []float32
	// Mirror says that a mirrored image keeps its class, so that Fill may augment. True of
	// photographs, false of letters.
	Mirror bool
}

// ImageSplit holds n images one after the other.
type ImageSplit struct {
	X []uint8 // n x C x H x W
	Y []int32 // n classes, each in [0, Classes)
}

// Len is the number of images.
func (s ImageSplit) Len() int { return len(s.Y) }

// measure sets Mean and Std. The sums are integers, so their order does not matter.
func (d *Images) measure() {
	plane := d.H * d.W
	d.Mean, d.Std = make([]float32, d.C), make([]float32, d.C)
	sum, squares := make([]uint64, d.C), make([]uint64, d.C)
	for at := 0; at < len(d.Train.X); at += plane {
		c := at / plane % d.C
		for _, v := range d.Train.X[at : at+plane] {
			sum[c] += uint64(v)
			squares[c] += uint64(v) * uint64(v)
		}
	}
	n := float64(d.Train.Len() * plane)
	for c := range d.C {
		mean := float64(sum[c]) / n
		variance := float64(squares[c])/n - float64(mean*mean)
		d.Mean[c], d.Std[c] = float32(mean), float32(math.Sqrt(max(variance, 0)))
		if d.Std[c] == 0 {
			d.Std[c] = 1 // a constant channel becomes all zeros
		}
	}
}

// cropPad is how far a random crop may move an image, in pixels each way.
const cropPad = 4

// Fill writes the images idx of split (Train or Test of d) to x, len(idx) x C x H x W, each
// channel shifted and scaled to mean 0 and deviation 1 over the train split, and their classes
// to y, len(idx).
//
// With augment set, and where d.Mirror holds, each image is first padded with 4 pixels of the
// channel's mean, which is zero after scaling, cut back to H x W at a random place, and mirrored
// with probability 1/2, as in He et al., "Deep Residual Learning", section 4.2. It allocates nothing.
func (d *Images) Fill(x []float32, y []int32, split ImageSplit, idx []int32, augment *rand.Rand) {
	size := d.C * d.H * d.W
	if len(x) != len(idx)*size || len(y) != len(idx) {
		panic(fmt.Sprintf("dataset: Fill: len(x) %d and len(y) %d for %d images of %d values", len(x), len(y), len(idx), size))
	}
	for k, i := range idx {
		y[k] = split.Y[i]
		src, dst := split.X[int(i)*size:][:size], x[k*size:][:size]
		if augment == nil || !d.Mirror {
			d.scale(dst, src)
			continue
		}
		dy, dx := augment.IntN(2*cropPad+1)-cropPad, augment.IntN(2*cropPad+1)-cropPad
		d.scaleShifted(dst, src, dy, dx, augment.IntN(2) == 1)
	}
}

func (d *Images) scale(dst []float32, src []uint8) {
	plane := d.H * d.W
	for c := range d.C {
		mean, inv := d.Mean[c], 1/d.Std[c]
		out := dst[c*plane:][:plane]
		for p, v := range src[c*plane:][:plane] {
			out[p] = (float32(v) - mean) * inv
		}
	}
}

// scaleShifted is scale with dst(r, q) = src(r+dy, q+dx), zero outside of src, and then with the
// columns of dst reversed if mirror is set.
func (d *Images) scaleShifted(dst []float32, src []uint8, dy, dx int, mirror bool) {
	clear(dst)
	lo, hi := max(0, -dx), min(d.W, d.W-dx) // columns of dst that come from src
	for c := range d.C {
		mean, inv := d.Mean[c], 1/d.Std[c]
		for r := max(0, -dy); r < min(d.H, d.H-dy); r++ {
			in := src[(c*d.H+r+dy)*d.W:][:d.W]
			out := dst[(c*d.H+r)*d.W:][:d.W]
			for q := lo; q < hi; q++ {
				to := q
				if mirror {
					to = d.W - 1 - q
				}
				out[to] = (float32(in[q+dx]) - mean) * inv
			}
		}
	}
}

// Text is a sequence of tokens, split in two.
type Text struct {
	Name         string
	Vocab        int
	Train, Valid []int32 // tokens in [0, Vocab)
	// Floor is the entropy rate of the source in nats a token, computed and not estimated: the mean
	// loss that no model can beat. NaN where it is unknown.
	Floor float64
}

// mix spreads the bits of x over 64 bits, so that seeds that are close start unrelated generators.
// It is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Purposes keep apart the random streams that share a seed. Their numbers are part of the data.
const (
	purposeTrain = iota + 1
	purposeTest
	purposeSource
	purposeOrder
)

// reseed starts p on the stream of a seed, a purpose and an index.
func reseed(p *rand.PCG, seed uint64, purpose, index int) {
	p.Seed(mix(seed^mix(uint64(purpose))), mix(uint64(index)))
}

// tally passes on progress from several goroutines.
type tally struct {
	mu          sync.Mutex
	done, total int64
	report      func(done, total int64)
}

func (t *tally) add(n int64) {
	if t.report == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += n
	t.report(t.done, t.total)
}

// stopped names the set whose making was cancelled.
func stopped(ctx context.Context, name string) error {
	return fmt.Errorf("dataset: %s: %w", name, context.Cause(ctx))
}
