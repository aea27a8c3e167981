package dataset

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/jpeg"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// cifarSpec is the shape of the set and where it is published; tests use smaller ones.
type cifarSpec struct {
	perFile int // images in each of the five train files and the test file
	archive remote
}

// The size is that of the file; the MD5 on the publisher's page is c32a1d4ab5d03f1284b67883e8d87530, and
// the SHA-256 goes with it in several public packages that load the set.
var cifar10 = cifarSpec{
	perFile: 10_000,
	archive: remote{
		name:   "cifar-10-binary.tar.gz",
		url:    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
		size:   170052171,
		sha256: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
	},
}

const (
	cifarTrainFiles = 5
	cifarValues     = 3 * 32 * 32
	cifarRecord     = 1 + cifarValues // bytes: the label, then 32x32 red, green and blue
	cifarBinary     = "cifar-10-batches-bin"
	cifarJPEG       = "cifar10-jpeg.tar.zst"
	maxJPEG         = 1 << 16 // bytes of one image; the longest real one has under 3,000
)

// cifarClasses are the classes in the order of their labels.
var cifarClasses = []string{"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"}

// CIFAR10 is the set of 60,000 photographs by Krizhevsky (2009), 50,000 of them to train on. It is read
// from the first of these that Options.Dir holds:
//
//	cifar-10-batches-bin/    the official binary files, data_batch_1.bin to 5 and test_batch.bin
//	cifar-10-binary.tar.gz   the official archive of them, checked against its SHA-256
//	cifar10-jpeg.tar.zst     all images as train/CLASS/NNNN.jpg and test/CLASS/NNNN.jpg
//
// or fetched as the second; see Options.Dir. The JPEG files are ordered by number and
// then by class, so that any prefix is balanced; their pixels are close to the official ones, not equal.
func CIFAR10(ctx context.Context, o Options) (*Images, error) {
	dir, mayFetch, err := o.place()
	if err != nil {
		return nil, err
	}
	return cifar10.load(ctx, o, dir, mayFetch)
}

func (s cifarSpec) load(ctx context.Context, o Options, dir string, mayFetch bool) (*Images, error) {
	n, err := o.trainSize(cifarTrainFiles * s.perFile)
	if err != nil {
		return nil, err
	}
	d := &Images{Name: "cifar10", Classes: len(cifarClasses), C: 3, H: 32, W: 32, Mirror: true,
		Train: newSplit(n), Test: newSplit(s.perFile)}
	if err := s.read(ctx, o, dir, mayFetch, d); err != nil {
		return nil, err
	}
	d.measure()
	return d, nil
}

// read fills the splits of d from what dir holds, or fetches it.
func (s cifarSpec) read(ctx context.Context, o Options, dir string, mayFetch bool, d *Images) error {
	binary, archive, jpegs := filepath.Join(dir, cifarBinary), filepath.Join(dir, s.archive.name), filepath.Join(dir, cifarJPEG)
	if files, _ := fs.Glob(os.DirFS(binary), "*.bin"); len(files) > 0 {
		return s.readBinary(ctx, binary, d)
	}
	if ok, err := isFile(archive); err != nil {
		return err
	} else if ok {
		return s.readArchive(ctx, archive, d)
	}
	if ok, err := isFile(jpegs); err != nil {
		return err
	} else if ok {
		return s.readJPEGs(ctx, jpegs, d, o.Progress)
	}
	if !mayFetch {
		return fmt.Errorf("dataset: %s holds none of %s%c*.bin, %s and %s; get the second from %s, or leave the directory unset to have it fetched",
			dir, cifarBinary, filepath.Separator, s.archive.name, cifarJPEG, s.archive.url)
	}
	if err := s.archive.fetch(ctx, dir, o.Progress); err != nil {
		return err
	}
	return s.readArchive(ctx, archive, d)
}

// files lists the binary files with the part of d that each fills. A train file beyond the limit
// fills nothing.
func (s cifarSpec) files(d *Images) (names []string, parts []ImageSplit) {
	for i := range cifarTrainFiles {
		names = append(names, fmt.Sprintf("data_batch_%d.bin", i+1))
		first := min(i*s.perFile, d.Train.Len())
		parts = append(parts, d.Train.part(first, min(first+s.perFile, d.Train.Len())))
	}
	return append(names, "test_batch.bin"), append(parts, d.Test)
}

// part is the images from first to before last.
func (s ImageSplit) part(first, last int) ImageSplit {
	return ImageSplit{X: s.X[first*cifarValues : last*cifarValues], Y: s.Y[first:last]}
}

func (s cifarSpec) readBinary(ctx context.Context, dir string, d *Images) error {
	names, parts := s.files(d)
	for i, name := range names {
		if ctx.Err() != nil {
			return stopped(ctx, "cifar10")
		}
		if parts[i].Len() == 0 {
			continue
		}
		if err := s.readBinaryFile(filepath.Join(dir, name), parts[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s cifarSpec) readBinaryFile(file string, part ImageSplit) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("dataset: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("dataset: %w", err)
	}
	if err := s.readRecords(f, info.Size(), part); err != nil {
		return fmt.Errorf("dataset: %s: %w", file, err)
	}
	return nil
}

// readRecords reads the first images of a binary file of size bytes.
func (s cifarSpec) readRecords(r io.Reader, size int64, part ImageSplit) error {
	if want := int64(s.perFile * cifarRecord); size != want {
		return fmt.Errorf("%d bytes, expected %d (%d records of %d)", size, want, s.perFile, cifarRecord)
	}
	b := make([]byte, part.Len()*cifarRecord)
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	return parseRecords(b, part)
}

// parseRecords splits records of one label and 3072 pixel values, as many as part holds.
func parseRecords(b []byte, part ImageSplit) error {
	if len(b) != part.Len()*cifarRecord {
		return fmt.Errorf("%d bytes, expected %d (%d records of %d)", len(b), part.Len()*cifarRecord, part.Len(), cifarRecord)
	}
	for i := range part.Y {
		record := b[i*cifarRecord:][:cifarRecord]
		if int(record[0]) >= len(cifarClasses) {
			return fmt.Errorf("record %d has label %d, expected 0 to %d", i, record[0], len(cifarClasses)-1)
		}
		part.Y[i] = int32(record[0])
		copy(part.X[i*cifarValues:][:cifarValues], record[1:])
	}
	return nil
}

// readArchive checks the official archive and reads its binary files where they lie.
func (s cifarSpec) readArchive(ctx context.Context, file string, d *Images) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("dataset: %w", err)
	}
	defer f.Close()
	err = s.archive.check(f)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err == nil {
		err = s.readTar(ctx, f, d)
	}
	if err != nil {
		return fmt.Errorf("dataset: %s: %w", file, err)
	}
	return nil
}

func (s cifarSpec) readTar(ctx context.Context, r io.Reader, d *Images) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	names, parts := s.files(d)
	found := make([]bool, len(names))
	for archive := tar.NewReader(z); ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		i := slices.Index(names, path.Base(header.Name))
		if i < 0 || header.Typeflag != tar.TypeReg {
			continue
		}
		if found[i] {
			return fmt.Errorf("%s is there twice", names[i])
		}
		found[i] = true
		if err := s.readRecords(archive, header.Size, parts[i]); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
	if i := slices.Index(found, false); i >= 0 {
		return fmt.Errorf("%s/%s is missing", cifarBinary, names[i])
	}
	return nil
}

// jpegFile is one encoded image and where its pixels go.
type jpegFile struct {
	name string
	data []byte
	x    []uint8 // 3 x 32 x 32
}

// readJPEGs reads the archive in order and decodes the images that d has room for on all cores.
func (s cifarSpec) readJPEGs(ctx context.Context, file string, d *Images, progress func(done, total int64)) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("dataset: %w", err)
	}
	defer f.Close()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	done := &tally{total: int64(d.Train.Len() + d.Test.Len()), report: progress}
	files := make(chan jpegFile, 256)
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for j := range files {
				if err := j.decode(); err != nil {
					cancel(fmt.Errorf("%s: %w", j.name, err))
				}
				done.add(1)
			}
		})
	}
	err = s.walkJPEGs(ctx, f, d, files)
	close(files)
	workers.Wait()
	if cause := context.Cause(ctx); cause != nil {
		err = cause // of a worker or of the caller; what walk says then is only its echo
	}
	if err != nil {
		return fmt.Errorf("dataset: %s: %w", file, err)
	}
	return nil
}

// walkJPEGs sends the images of an archive to files until ctx ends, and sets their labels. All of the
// images that d has room for must be there, each once; others are passed over.
func (s cifarSpec) walkJPEGs(ctx context.Context, r io.Reader, d *Images, files chan<- jpegFile) error {
	z, err := newZstd(r)
	if err != nil {
		return err
	}
	defer z.Close()
	seen := map[string][]bool{"train": make([]bool, d.Train.Len()), "test": make([]bool, d.Test.Len())}
	left := d.Train.Len() + d.Test.Len()
	for archive := tar.NewReader(z); left > 0; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("%d of %d images are missing", left, d.Train.Len()+d.Test.Len())
		}
		if err != nil {
			return err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		dir, class, number, err := s.parseName(header.Name)
		if err != nil {
			return err
		}
		split := d.Train
		if dir == "test" {
			split = d.Test
		}
		i := number*len(cifarClasses) + class
		if i >= split.Len() {
			continue
		}
		if seen[dir][i] {
			return fmt.Errorf("%s is there twice", header.Name)
		}
		seen[dir][i] = true
		if header.Size > maxJPEG {
			return fmt.Errorf("%s: %d bytes, expected at most %d", header.Name, header.Size, maxJPEG)
		}
		data := make([]byte, header.Size)
		if _, err := io.ReadFull(archive, data); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
		split.Y[i] = int32(class)
		select {
		case files <- jpegFile{header.Name, data, split.X[i*cifarValues:][:cifarValues]}:
			left--
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// parseName takes apart train/CLASS/NNNN.jpg or test/CLASS/NNNN.jpg.
func (s cifarSpec) parseName(name string) (split string, class, number int, err error) {
	perClass := s.perFile / len(cifarClasses)
	parts := strings.Split(strings.TrimPrefix(name, "./"), "/")
	if len(parts) == 3 {
		split, class = parts[0], slices.Index(cifarClasses, parts[1])
		if split == "train" {
			perClass *= cifarTrainFiles
		}
		stem, isJPEG := strings.CutSuffix(parts[2], ".jpg")
		number, err = strconv.Atoi(stem)
		if (split == "train" || split == "test") && class >= 0 && isJPEG && err == nil && number >= 0 && number < perClass {
			return split, class, number, nil
		}
	}
	return "", 0, 0, fmt.Errorf("entry %q, expected train/CLASS/NNNN.jpg with NNNN below %d or test/CLASS/NNNN.jpg below %d, CLASS one of %s",
		name, cifarTrainFiles*s.perFile/len(cifarClasses), s.perFile/len(cifarClasses), strings.Join(cifarClasses, " "))
}

// decode writes the pixels. The size is checked before anything is allocated for them.
func (j jpegFile) decode() error {
	config, err := jpeg.DecodeConfig(bytes.NewReader(j.data))
	if err != nil {
		return err
	}
	if config.Width != 32 || config.Height != 32 {
		return fmt.Errorf("%d x %d pixels, expected 32 x 32", config.Width, config.Height)
	}
	img, err := jpeg.Decode(bytes.NewReader(j.data))
	if err != nil {
		return err
	}
	photo, ok := img.(*image.YCbCr)
	if !ok {
		return errors.New("not a colour JPEG in YCbCr")
	}
	for y := range 32 {
		for x := range 32 {
			luma, chroma := photo.YOffset(x, y), photo.COffset(x, y)
			r, g, b := color.YCbCrToRGB(photo.Y[luma], photo.Cb[chroma], photo.Cr[chroma])
			at := y*32 + x
			j.x[at], j.x[1024+at], j.x[2048+at] = r, g, b
		}
	}
	return nil
}
