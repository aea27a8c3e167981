//go:build !amd64 || purego

package kernels

// avx2 is false: there is no assembly in this build, and nothing below is called.
var avx2 bool

func spreadAVX2([]float32, float64, *[8]uint32, *[16]float64, *[16]float64) int { return 0 }
func drawTernaryAVX2([]uint8, []float32, uint32, uint32, uint32, uint32, uint32, uint32, float32, float32) int {
	return 0
}
func addTernaryAVX2([]float32, []uint8, float32) int                         { return 0 }
func maxAbsAVX2([]float32) (int, uint32)                                     { return 0, 0 }
func takeLevelsAVX2([]uint8, []float32, float32, float32) int                { return 0 }
func addLevelsAVX2([]float32, []uint8, float32) int                          { return 0 }
func packRowAVX2([]uint8, []float32, *[8]float64, *[8]float64) (int, int)    { return 0, 0 }
func packColumnsAVX2([]uint8, []float32, []float64, []float64, []uint32) int { return 0 }
func addRowAVX2([]float32, []uint8, float32, float32) int                    { return 0 }
func addColumnsAVX2([]float32, []uint8, []float32, []float32) int            { return 0 }
func nonFiniteAVX2([]float32) (int, uint32)                                  { return 0, 0 }
func correctAVX2([]float32, []float32, []float32, float32) int               { return 0 }
func skipAVX2([]float32, uint32) (int, uint32)                               { return 0, 0 }
func toF16AVX2([]uint16, []float32) int                                      { return 0 }
func fromF16AVX2([]float32, []uint16) int                                    { return 0 }
func toBF16AVX2([]uint16, []float32) int                                     { return 0 }
func fromBF16AVX2([]float32, []uint16) int                                   { return 0 }
func takeAboveAVX2([]uint32, []float32, []float32, uint32, float32) (int, int, uint32) {
	return 0, 0, 0
}
func dotsAVX2(m0, m1, m2, m3, q []float32, sums *[4]float32) int         { return 0 }
func weighAVX2(q, m0, m1, m2, m3 []float32, p *[4]float32) int           { return 0 }
func setOuter1AVX2(m0, m1, m2, m3, q []float32, p *[4]float32) int       { return 0 }
func addOuter1AVX2(m0, m1, m2, m3, q []float32, p *[4]float32) int       { return 0 }
func setOuter2AVX2(m0, m1, m2, m3, q, s []float32, p, r *[4]float32) int { return 0 }
func addOuter2AVX2(m0, m1, m2, m3, q, s []float32, p, r *[4]float32) int { return 0 }
