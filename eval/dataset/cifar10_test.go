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
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
)

const perFile = 20 // images a file in the small sets of these tests

// small is the shape of those sets, for tests in which the archive is not there.
var small = cifarSpec{perFile: perFile, archive: remote{name: "a.tar.gz"}}

// entry is a file in an archive.
type entry struct {
	name string
	data []byte
}

func tarOf(t *testing.T, entries []entry) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := w.WriteHeader(&tar.Header{Name: e.name, Size: int64(len(e.data)), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(e.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipOf(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write(data)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// binaryFiles are six files of random records, in the order of the splits.
func binaryFiles() []entry {
	rng := rand.New(rand.NewPCG(1, 1))
	var files []entry
	for i := range 6 {
		data := make([]byte, perFile*cifarRecord)
		for at := range data {
			data[at] = byte(rng.Uint32())
			if at%cifarRecord == 0 {
				data[at] %= 10
			}
		}
		name := "test_batch.bin"
		if i < 5 {
			name = fmt.Sprintf("data_batch_%d.bin", i+1)
		}
		files = append(files, entry{cifarBinary + "/" + name, data})
	}
	return files
}

// jpegOf encodes a smooth image that differs with seed.
func jpegOf(t testing.TB, w, h, seed int) []byte {
	t.Helper()
	img := image.NewRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w {
			img.Set(x, y, color.RGBA{uint8(8*x + seed), uint8(8*y + 3*seed), uint8(4*x + 4*y + 7*seed), 255})
		}
	}
	var b bytes.Buffer
	if err := jpeg.Encode(&b, img, nil); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// jpegFiles are 10 train and 2 test images of each class, class by class.
func jpegFiles(t *testing.T) []entry {
	var files []entry
	for split, n := range []int{10, 2} {
		for _, class := range cifarClasses {
			for i := range n {
				name := fmt.Sprintf("%s/%s/%04d.jpg", []string{"train", "test"}[split], class, i)
				files = append(files, entry{name, jpegOf(t, 32, 32, len(files))})
			}
		}
	}
	return files
}

// checkRecords compares the splits with the records of files.
func checkRecords(t *testing.T, d *Images, files []entry, train int) {
	t.Helper()
	var all []byte
	for _, f := range files {
		all = append(all, f.data...)
	}
	if d.Train.Len() != train || d.Test.Len() != perFile || !d.Mirror || d.Classes != 10 {
		t.Fatalf("%d and %d images", d.Train.Len(), d.Test.Len())
	}
	check := func(s ImageSplit, first int) {
		for i := range s.Len() {
			r := all[(first+i)*cifarRecord:][:cifarRecord]
			if s.Y[i] != int32(r[0]) || !bytes.Equal(s.X[i*cifarValues:][:cifarValues], r[1:]) {
				t.Fatalf("image %d differs from record %d", i, first+i)
			}
		}
	}
	check(d.Train, 0)
	check(d.Test, 5*perFile)
}

func TestCIFARBinary(t *testing.T) {
	dir, files := t.TempDir(), binaryFiles()
	for _, f := range files {
		writeFile(t, filepath.Join(dir, f.name), f.data)
	}
	writeFile(t, filepath.Join(dir, cifarJPEG), []byte("comes last")) // and is not read
	for limit, train := range map[int]int{0: 100, 1: 1, 20: 20, 33: 33, 1000: 100} {
		d, err := small.load(t.Context(), Options{TrainLimit: limit}, dir, false)
		if err != nil {
			t.Fatal(err)
		}
		checkRecords(t, d, files, train)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := small.load(ctx, Options{}, dir, false); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

func TestCIFARBinaryFailures(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(path string, data []byte) error
		parts []string
	}{
		"truncated": {func(p string, b []byte) error { return os.WriteFile(p, b[:len(b)-1], 0o644) },
			[]string{"61459 bytes, expected 61460"}},
		"longer": {func(p string, b []byte) error { return os.WriteFile(p, append(slices.Clone(b), 0), 0o644) },
			[]string{"61461 bytes, expected 61460"}},
		"empty": {func(p string, b []byte) error { return os.WriteFile(p, nil, 0o644) }, []string{"0 bytes"}},
		"label": {func(p string, b []byte) error {
			b = slices.Clone(b)
			b[7*cifarRecord] = 10
			return os.WriteFile(p, b, 0o644)
		}, []string{"record 7", "label 10", "0 to 9"}},
		"missing":   {func(p string, _ []byte) error { return os.Remove(p) }, nil},
		"directory": {func(p string, _ []byte) error { os.Remove(p); return os.Mkdir(p, 0o755) }, []string{"bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, files := t.TempDir(), binaryFiles()
			for _, f := range files {
				writeFile(t, filepath.Join(dir, f.name), f.data)
			}
			path := filepath.Join(dir, files[3].name)
			if err := c.spoil(path, files[3].data); err != nil {
				t.Fatal(err)
			}
			_, err := small.load(t.Context(), Options{}, dir, false)
			wantError(t, err, append(c.parts, path)...)
		})
	}
}

func TestCIFARArchive(t *testing.T) {
	files := binaryFiles()
	data := gzipOf(t, tarOf(t, append([]entry{{cifarBinary + "/readme.html", []byte("hello")}, files[5]}, files[:5]...)))
	var asked atomic.Int32
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { asked.Add(1); w.Write(data) })
	spec := cifarSpec{perFile, remoteOf("a.tar.gz", url, data)}
	cache := t.TempDir()
	for range 2 { // fetched, then found
		d, err := spec.load(t.Context(), Options{TrainLimit: 33}, cache, true)
		if err != nil {
			t.Fatal(err)
		}
		checkRecords(t, d, files, 33)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("fetched %d times, want once", n)
	}
}

func TestCIFARArchiveFailures(t *testing.T) {
	files := binaryFiles()
	good := gzipOf(t, tarOf(t, files))
	flipped := slices.Clone(good)
	flipped[len(flipped)/2] ^= 1
	with := func(i int, data []byte) []byte {
		changed := slices.Clone(files)
		changed[i].data = data
		return gzipOf(t, tarOf(t, changed))
	}
	label := slices.Clone(files[5].data)
	label[0] = 200
	for name, c := range map[string]struct {
		data, published []byte // nil: what is there was published
		parts           []string
	}{
		"truncated":      {good[:len(good)-5], good, []string{"bytes, expected"}},
		"flipped":        {flipped, good, []string{"SHA-256"}},
		"not gzip":       {[]byte("this is not an archive"), nil, []string{"gzip"}},
		"cut stream":     {good[:len(good)/2], nil, []string{"EOF"}},
		"not tar":        {gzipOf(t, bytes.Repeat([]byte("nonsense"), 1000)), nil, []string{"tar"}},
		"empty tar":      {gzipOf(t, tarOf(t, nil)), nil, []string{"data_batch_1.bin is missing"}},
		"missing batch":  {gzipOf(t, tarOf(t, files[:5])), nil, []string{"test_batch.bin is missing"}},
		"repeated batch": {gzipOf(t, tarOf(t, append(files[:6:6], files[2]))), nil, []string{"data_batch_3.bin", "twice"}},
		"short batch":    {with(1, files[1].data[:100]), nil, []string{"data_batch_2.bin", "100 bytes, expected 61460"}},
		"wrong label":    {with(5, label), nil, []string{"test_batch.bin", "record 0", "label 200"}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.published == nil {
				c.published = c.data
			}
			dir := t.TempDir()
			path := filepath.Join(dir, "a.tar.gz")
			writeFile(t, path, c.data)
			_, err := cifarSpec{perFile, remoteOf("a.tar.gz", "", c.published)}.load(t.Context(), Options{}, dir, false)
			wantError(t, err, append(c.parts, path)...)
		})
	}
}

func TestCIFARJPEGs(t *testing.T) {
	dir, files := t.TempDir(), jpegFiles(t)
	writeFile(t, filepath.Join(dir, cifarJPEG), zstdOf(t, tarOf(t, files)))
	for _, limit := range []int{0, 25} {
		var last, total int64
		o := Options{TrainLimit: limit, Progress: func(d, of int64) { last, total = d, of }}
		d, err := small.load(t.Context(), o, dir, false)
		if err != nil {
			t.Fatal(err)
		}
		want := 100
		if limit > 0 {
			want = limit
		}
		if d.Train.Len() != want || d.Test.Len() != perFile || last != int64(want+perFile) || total != last {
			t.Fatalf("%d and %d images, progress %d of %d", d.Train.Len(), d.Test.Len(), last, total)
		}
		check := func(s ImageSplit, files []entry, perClass int) {
			for i := range s.Len() {
				class, number := i%10, i/10
				img, err := jpeg.Decode(bytes.NewReader(files[class*perClass+number].data))
				if err != nil {
					t.Fatal(err)
				}
				if s.Y[i] != int32(class) {
					t.Fatalf("image %d has class %d, want %d", i, s.Y[i], class)
				}
				for p := range 1024 {
					r, g, b, _ := img.At(p%32, p/32).RGBA()
					x := s.X[i*cifarValues:]
					if x[p] != uint8(r>>8) || x[1024+p] != uint8(g>>8) || x[2048+p] != uint8(b>>8) {
						t.Fatalf("image %d differs at pixel %d", i, p)
					}
				}
			}
		}
		check(d.Train, files, 10)
		check(d.Test, files[100:], 2)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := small.load(ctx, Options{}, dir, false); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want context.Canceled", err)
	}
}

func TestCIFARJPEGFailures(t *testing.T) {
	files := jpegFiles(t)
	good := zstdOf(t, tarOf(t, files))
	with := func(name string, data []byte) []byte { // in place of the 42nd
		changed := slices.Clone(files)
		changed[41] = entry{name, data}
		return zstdOf(t, tarOf(t, changed))
	}
	var grey bytes.Buffer
	if err := jpeg.Encode(&grey, image.NewGray(image.Rect(0, 0, 32, 32)), nil); err != nil {
		t.Fatal(err)
	}
	here, photo := files[41].name, files[41].data
	huge := slices.Clone(photo)
	frame := bytes.Index(huge, []byte{0xff, 0xc0}) // then two bytes of length, one of depth, height and width
	copy(huge[frame+5:], []byte{255, 255, 255, 255})
	for name, c := range map[string]struct {
		data  []byte
		parts []string
	}{
		"not zstd":    {[]byte("not an archive"), []string{"magic"}},
		"empty":       {nil, []string{"120 of 120 images are missing"}},
		"cut stream":  {good[:len(good)/2], []string{"EOF"}},
		"cut tar":     {zstdOf(t, tarOf(t, files)[:40_000]), []string{"EOF"}},
		"one missing": {zstdOf(t, tarOf(t, append(slices.Clone(files[:7]), files[8:]...))), []string{"1 of 120 images are missing"}},
		"twice":       {with(files[3].name, photo), []string{files[3].name, "twice"}},
		"class":       {with("train/lorry/0001.jpg", photo), []string{"train/lorry/0001.jpg", "airplane"}},
		"split":       {with("valid/cat/0001.jpg", photo), []string{"valid/cat/0001.jpg"}},
		"number":      {with("train/cat/0010.jpg", photo), []string{"train/cat/0010.jpg", "below 10"}},
		"negative":    {with("train/cat/-001.jpg", photo), []string{"train/cat/-001.jpg"}},
		"outside":     {with("../../train/cat/0001.jpg", photo), []string{"../../train/cat/0001.jpg"}},
		"wrong size":  {with(here, jpegOf(t, 33, 32, 1)), []string{here, "33 x 32 pixels", "32 x 32"}},
		"huge size":   {with(here, huge), []string{here, "65535 x 65535 pixels"}},
		"not JPEG":    {with(here, []byte("hello")), []string{here, "JPEG"}},
		"cut JPEG":    {with(here, photo[:len(photo)-30]), []string{here, "JPEG"}},
		"grey":        {with(here, grey.Bytes()), []string{here, "colour"}},
		"large entry": {with(here, make([]byte, maxJPEG+1)), []string{here, "65537 bytes"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, cifarJPEG)
			writeFile(t, path, c.data)
			_, err := small.load(t.Context(), Options{}, dir, false)
			wantError(t, err, append(c.parts, path)...)
		})
	}
}

// Records that are accepted give back the bytes they came from.
func FuzzParseRecords(f *testing.F) {
	f.Add([]byte{}, uint8(0))
	f.Add(make([]byte, cifarRecord), uint8(1))
	f.Add(binaryFiles()[0].data[:3*cifarRecord], uint8(3))
	f.Add(bytes.Repeat([]byte{10}, 2*cifarRecord), uint8(2))
	f.Add(make([]byte, cifarRecord-1), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		n %= 8
		s := newSplit(int(n))
		if parseRecords(b, s) != nil {
			return
		}
		var back []byte
		for i, y := range s.Y {
			if y < 0 || y > 9 {
				t.Fatalf("label %d", y)
			}
			back = append(append(back, byte(y)), s.X[i*cifarValues:][:cifarValues]...)
		}
		if !bytes.Equal(back, b) {
			t.Error("the records differ from what was parsed")
		}
	})
}

// The real files: GRADPRESS_DATA names the directory that has them.
func TestRealFiles(t *testing.T) {
	dir := os.Getenv("GRADPRESS_DATA")
	if dir == "" {
		t.Skip("GRADPRESS_DATA does not name a directory with the CIFAR-10 and tiny shakespeare files")
	}
	d, err := CIFAR10(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	counts := make([]int, 10)
	for _, y := range d.Train.Y {
		counts[y]++
	}
	if d.Train.Len() != 50_000 || d.Test.Len() != 10_000 || slices.Min(counts) != 5000 || slices.Max(counts) != 5000 {
		t.Errorf("%d and %d images, classes %v", d.Train.Len(), d.Test.Len(), counts)
	}
	// Of the official pixels, in many published programs; JPEG shifts them by less than 0.01 of 255.
	for c, mean := range []float32{0.4914, 0.4822, 0.4465} {
		if got := d.Mean[c] / 255; got < mean-0.01 || got > mean+0.01 {
			t.Errorf("channel %d: mean %.4f, want %.4f", c, got, mean)
		}
	}
	text, err := Shakespeare(t.Context(), Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if text.Vocab != 65 || len(text.Train) != 1_003_854 || len(text.Valid) != 111_540 {
		t.Errorf("%d symbols, %d and %d tokens", text.Vocab, len(text.Train), len(text.Valid))
	}
}

func BenchmarkDecodeJPEG(b *testing.B) {
	j := jpegFile{data: jpegOf(b, 32, 32, 1), x: make([]uint8, cifarValues)}
	b.SetBytes(cifarValues)
	for b.Loop() {
		if err := j.decode(); err != nil {
			b.Fatal(err)
		}
	}
}
