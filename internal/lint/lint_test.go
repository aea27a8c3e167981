// Package lint checks what the compiler does not: who may import whom, where cgo may be, what packages may be called.
package lint

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/gradpress/gradpress/"

// allowed lists, for every package, what it may import of this module. A package that ends in /... stands for all below it. Imports go
// down only; a package that is missing here fails the test.
var allowed = map[string][]string{
	"kernels":                   {},
	"compress":                  {"kernels"},
	"compress/compresstest":     {"compress", "kernels"},
	"dgc":                       {"compress", "kernels"},
	"powersgd":                  {"compress", "kernels"},
	"quant":                     {"compress", "kernels"},
	"compress/all":              {"compress", "dgc", "powersgd", "quant"},
	"transport":                 {},
	"transport/...":             {"transport", "transport/..."},
	"collective":                {"kernels", "transport"},
	"collective/collectivetest": {"collective", "kernels", "transport"},
	"ddp":                       {"kernels"},
	"hooks":                     {"collective", "compress", "ddp", "kernels", "transport"},
	"eval/checkpoint":           {},
	"eval/dataset":              {},
	"eval/model":                {"eval/model/blas"},
	"eval/model/blas":           {},
	"eval":                      {"collective", "compress", "compress/all", "ddp", "eval/checkpoint", "eval/dataset", "eval/model", "eval/model/blas", "hooks", "kernels", "transport", "transport/inproc"},
	"eval/report":               {"eval"},
	"eval/ratio":                {"collective", "compress", "ddp", "eval/report", "eval/shapes", "hooks", "kernels", "transport"},
	"eval/shapes":               {},
	"eval/peers/...":            {"compress", "compress/all", "compress/compresstest", "kernels"},
	"cmd/gradpress":             {"compress", "compress/all", "eval", "eval/...", "hooks", "transport/launch", "transport/tcp"},
	"internal/lint":             {},
}

// cgo lists where import "C" may stand.
var cgo = []string{"kernels/cuda", "kernels/emu", "collective/mpi", "collective/nccl", "plugin", "eval/model/blas"}

func match(pattern, pkg string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "/..."); ok {
		return strings.HasPrefix(pkg, prefix+"/")
	}
	return pattern == pkg
}

// rule finds the most specific entry for a package.
func rule(pkg string) (imports []string, ok bool) {
	if r, ok := allowed[pkg]; ok {
		return r, true
	}
	for pattern, r := range allowed {
		if strings.HasSuffix(pattern, "/...") && match(pattern, pkg) {
			return r, true
		}
	}
	return nil, false
}

func mayImport(pkg, dep string) bool {
	list, _ := rule(pkg)
	for _, pattern := range list {
		if match(pattern, dep) {
			return true
		}
	}
	return false
}

// goFiles calls f for every Go file of the module.
func goFiles(t *testing.T, f func(pkg, file string, imports []string)) {
	const root = "../.."
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && file != root && (name == "testdata" || strings.HasPrefix(name, "_") || strings.HasPrefix(name, ".")) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(file, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		var imports []string
		for _, i := range parsed.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			imports = append(imports, p)
		}
		dir, err := filepath.Rel(root, filepath.Dir(file))
		f(filepath.ToSlash(dir), file, imports)
		return err
	})
	require.NoError(t, err)
}

func TestImports(t *testing.T) {
	files := 0
	goFiles(t, func(pkg, file string, imports []string) {
		files++
		if _, ok := rule(pkg); !ok {
			t.Errorf("%s: package %s has no rule in internal/lint", file, pkg)
		}
		for _, p := range imports {
			if p == "C" {
				ok := false
				for _, c := range cgo {
					ok = ok || pkg == c || strings.HasPrefix(pkg, c+"/")
				}
				if !ok {
					t.Errorf("%s: cgo is not allowed in %s", file, pkg)
				}
			}
			dep, ours := strings.CutPrefix(p, module)
			if !ours || strings.HasSuffix(file, "_test.go") {
				continue // tests may use what they like of what lies below them; the compiler refuses cycles
			}
			if !mayImport(pkg, dep) {
				t.Errorf("%s: %s may not import %s", file, pkg, dep)
			}
		}
	})
	require.Greater(t, files, 50, "the walk has missed the module")
}

// Algorithms never communicate and never know each other, in tests neither.
func TestAlgorithmsStayApart(t *testing.T) {
	goFiles(t, func(pkg, file string, imports []string) {
		if pkg != "dgc" && pkg != "powersgd" && pkg != "quant" {
			return
		}
		for _, p := range imports {
			dep, ours := strings.CutPrefix(p, module)
			if ours && dep != pkg && !match("compress", dep) && !match("compress/compresstest", dep) && dep != "kernels" {
				t.Errorf("%s: an algorithm may not import %s", file, dep)
			}
		}
	})
}

func TestNames(t *testing.T) {
	goFiles(t, func(pkg, file string, _ []string) {
		if base := path.Base(pkg); base == "util" || base == "utils" || base == "common" || base == "helpers" {
			t.Errorf("%s: %q says nothing about what a package does", file, base)
		}
	})
}
