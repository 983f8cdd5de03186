package bridge

import (
	"regexp"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// words cuts a text into search terms: at every change between letters, digits and
// the rest, and at the humps of camelCase; lower case and without endings. Scripts
// that write no blanks give pairs of characters.
func words(s string) []string {
	var c cutter
	prev := rune(0)
	runes := []rune(norm.NFKC.String(s))
	for i, r := range runes {
		switch {
		case wide(r):
			c.flush()
			c.wide = append(c.wide, r)
			prev = 0
			continue
		case !unicode.IsLetter(r) && !unicode.IsDigit(r):
			c.flush()
			c.flushWide()
			prev = 0
			continue
		}
		c.flushWide()
		hump := unicode.IsUpper(r) && (unicode.IsLower(prev) || prev != 0 && unicode.IsUpper(prev) && i+1 < len(runes) && unicode.IsLower(runes[i+1]))
		if hump || prev != 0 && unicode.IsDigit(r) != unicode.IsDigit(prev) {
			c.flush()
		}
		c.word = append(c.word, r)
		prev = r
	}
	c.flush()
	c.flushWide()
	return c.out
}

// wide reports kana, Han and Hangul.
func wide(r rune) bool { return r >= 0x3040 && r <= 0x9fff || r >= 0xac00 && r <= 0xd7af }

type cutter struct {
	out        []string
	word, wide []rune
}

func (c *cutter) flush() {
	if len(c.word) > 0 {
		if w := stem(strings.ToLower(string(c.word))); w != "" && !idle[w] {
			c.out = append(c.out, w)
		}
		c.word = c.word[:0]
	}
}

func (c *cutter) flushWide() {
	if len(c.wide) == 1 {
		c.out = append(c.out, string(c.wide))
	}
	for i := 0; i+1 < len(c.wide); i++ {
		c.out = append(c.out, string(c.wide[i:i+2]))
	}
	c.wide = c.wide[:0]
}

// idle words tell no tool from another.
var idle = set(`a an the of to in on for and or by with from at as is are be been it its this that these those into via using use can will
	may your you our we i my me their them his her any all each some such if then than not no so do does one two also which what when where who how please
	should must would could about give tell based between within including include provide given specified specific following need want help new current order
	tool mcp server api function return returns parameter optional default value string number object true false e g etc`)

func set(s string) map[string]bool {
	out := map[string]bool{}
	for w := range strings.FieldsSeq(s) {
		out[stem(w)] = true
	}
	return out
}

// stem takes the common English endings off, so that "listing issues" and "list
// issue" are the same words.
func stem(w string) string {
	if len(w) < 4 || w == "news" || w == "series" {
		return w
	}
	cut := func(end, with string, least int) bool {
		base, ok := strings.CutSuffix(w, end)
		if ok = ok && len(base) >= least; ok {
			w = base + with
		}
		return ok
	}
	if !cut("sses", "ss", 2) && !cut("ies", "y", 2) && !strings.HasSuffix(w, "ss") && !strings.HasSuffix(w, "us") && !strings.HasSuffix(w, "is") {
		cut("s", "", 3)
	}
	if cut("ation", "at", 3) || cut("ating", "at", 3) || cut("ated", "at", 3) || cut("ator", "at", 3) {
		return w
	}
	if cut("ing", "", 3) || cut("ed", "", 3) || cut("er", "", 4) || cut("ion", "", 4) || cut("ment", "", 4) || cut("ly", "", 4) || cut("al", "", 4) {
		if n := len(w); n > 3 && w[n-1] == w[n-2] && !strings.ContainsRune("lsz", rune(w[n-1])) {
			w = w[:n-1]
		}
	}
	if strings.HasSuffix(w, "e") && len(w) > 3 {
		w = w[:len(w)-1]
	}
	if strings.HasSuffix(w, "y") && len(w) > 3 {
		w = w[:len(w)-1] + "i"
	}
	return w
}

// pathRE finds addresses, paths and file names in a question.
var pathRE = regexp.MustCompile(`https?://[^\s"'<>]+|(?:~|\.{1,2})?/[\w~.\-]+(?:/[\w~.\-]*)*|\b[\w\-]+\.[A-Za-z][A-Za-z0-9]{1,4}\b`)

// endings say what a file is.
var endings = map[string]string{
	"xlsx": "excel spreadsheet", "xls": "excel spreadsheet", "csv": "csv file", "docx": "word document", "doc": "word document",
	"pptx": "powerpoint presentation", "ppt": "powerpoint presentation", "pdf": "pdf document", "svg": "image picture svg",
	"png": "image picture", "jpg": "image picture", "jpeg": "image picture", "gif": "image picture", "mp3": "audio", "wav": "audio",
	"mp4": "video", "mov": "video", "zip": "archive file", "json": "json file", "html": "html file", "md": "file", "txt": "file", "yaml": "file",
	"yml": "file", "xml": "file", "py": "file", "js": "file", "ts": "file", "go": "file", "log": "file", "sh": "file",
}

// plain says in words what a question names by a path: where something is matters
// less than what it is.
func plain(q string) string {
	return pathRE.ReplaceAllStringFunc(q, func(t string) string {
		if strings.HasPrefix(t, "http") {
			return " web page url "
		}
		dot, slash := strings.LastIndexByte(t, '.'), strings.LastIndexByte(t, '/')
		if dot > slash {
			if kind, ok := endings[strings.ToLower(strings.TrimRight(t[dot+1:], "."))]; ok {
				return " " + kind + " "
			}
		}
		switch {
		case slash < 0:
			return t
		case dot > slash && dot < len(t)-1:
			return " file "
		}
		return " folder directory "
	})
}

// clauses are the steps that a longer question names.
func clauses(q string) []string {
	var out []string
	for _, s := range strings.FieldsFunc(q, func(r rune) bool { return strings.ContainsRune(".;!?\n:,", r) }) {
		for c := range strings.SplitSeq(s, " and ") {
			if len(words(c)) >= 2 {
				out = append(out, c)
			}
			if len(out) == maxClauses {
				return out
			}
		}
	}
	return out
}

// maxClauses bounds the work of one question.
const maxClauses = 12

// kin are words that people use for one another when they ask for a tool, in two
// languages that many servers describe themselves in.
var kin = families(
	"create add new make insert generate build compose write produce draw",
	"get fetch retrieve read show view obtain load open lookup check look",
	"list enumerate browse all",
	"find search query locate discover explore seek 搜索 查询",
	"delete remove drop erase clear",
	"update edit modify change set patch adjust rename",
	"send post publish share notify message",
	"convert transform translate export turn change format",
	"analyze analyse analysis inspect examine evaluate study",
	"compute calculate count measure sum estimate",
	"add sum plus total",
	"summarize summary overview report recap",
	"download save store fetch",
	"save write store",
	"run execute start launch invoke call",
	"compare diff difference versus",
	"picture image photo figure 图片",
	"chart plot graph diagram visualization visualize",
	"movie film video clip 电影 视频",
	"music audio song sound track 音乐",
	"document doc docx word file 文档",
	"paragraph text content body",
	"spreadsheet excel xlsx sheet workbook csv table",
	"presentation slide ppt pptx powerpoint deck",
	"folder directory path",
	"file document 文件",
	"website webpage page site url web link 网页",
	"map route direction distance navigation travel 地图 路线",
	"location place address coordinate geocode city 地址",
	"weather forecast temperature 天气",
	"paper article publication literature preprint research",
	"book 图书 书籍",
	"stock share ticker equity market price 股票",
	"finance 财经 金融",
	"crypto cryptocurrency coin token bitcoin",
	"ticket train railway flight booking 车票 火车",
	"station 车站",
	"repository repo project codebase",
	"issue bug ticket task",
	"commit change revision",
	"email mail inbox message",
	"calendar event meeting schedule appointment",
	"recipe dish cook meal food 菜谱 食谱",
	"trend hot popular ranking rank top trending 热门 热榜 排行 榜单",
	"news headline article 新闻 资讯 快讯",
	"shop buy goods product 商品 购物 消费",
	"cheap discount deal sale bargain 优惠 折扣",
	"electronic device digital gadget 数码 设备",
	"technology tech 科技",
	"startup business 创业 商业",
	"sport 体育",
	"game 游戏",
	"car vehicle 汽车",
	"recommend suggest 推荐",
	"read 阅读 读取",
	"database sql table record row",
	"user person people member profile account",
	"browser page tab screenshot navigate click",
	"company firm business organization corporation",
	"hotel accommodation stay lodging",
	"restaurant food dining eat",
	"gene protein variant disease drug clinical",
	"answer question ask query",
	"history log record past",
	"date time day today now timezone 时间 日期",
)

func families(lines ...string) map[string][]string {
	out := map[string][]string{}
	for _, l := range lines {
		var ws []string
		for w := range strings.FieldsSeq(l) {
			ws = append(ws, stem(w))
		}
		for _, a := range ws {
			for _, b := range ws {
				if a != b {
					out[a] = append(out[a], b)
				}
			}
		}
	}
	return out
}
