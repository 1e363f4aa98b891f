"""Public names and addresses: each is found whole or missed, and none is cut."""

import unicodedata

import pytest

from spark_audit.data.pii import find_identifiers

NAMES = """
Ludwig van Beethoven|Vincent van Gogh|Johannes van der Waals|Oscar de la Renta
Guillermo del Toro|Leonardo da Vinci|Catherine de' Medici|Lorenzo di Medici
Charles de Gaulle|Honoré de Balzac|Guy de Maupassant|Antoine de Saint-Exupéry
Wernher von Braun|Johann Wolfgang von Goethe|Alexander von Humboldt
Ferdinand von Zeppelin|Otto von Bismarck|Walther von der Vogelweide
Ibn Sina|Osama bin Laden|Salman bin Abdulaziz Al Saud|Gamal Abdel Nasser
Muhammad ibn Musa al-Khwarizmi|Naguib Mahfouz|Omar al-Bashir|Abd al-Rahman
Pedro Álvares Cabral|Vasco da Gama|José Saramago|Luiz Inácio Lula da Silva
Gabriel García Márquez|Federico García Lorca|Santiago Ramón y Cajal
José Ortega y Gasset|Pablo Picasso|Miguel de Cervantes|Ignacio Zuloaga y Zabaleta
René Descartes|Blaise Pascal|Évariste Galois|Émile Zola|Ève Curie|François Mitterrand
Jean-Jacques Rousseau|Jean-Paul Sartre|Marie-Antoinette|Henri Toulouse-Lautrec
Pierre-Simon Laplace|Simone de Beauvoir|Valéry Giscard d'Estaing|Jeanne d'Arc
Louis-Ferdinand Céline|Camille Saint-Saëns|Joliot-Curie
Sinéad O'Connor|Flannery O'Connor|Shaquille O'Neal|Eugene O’Neill|Peter O'Toole
Gabriele D'Annunzio|Dinesh D'Souza|Seán Mac Bride|Mary McAleese|Douglas MacArthur
George H. W. Bush|John F. Kennedy|Franklin D. Roosevelt|J. R. R. Tolkien|C. S. Lewis
H. G. Wells|W. H. Auden|J. K. Rowling|George R. R. Martin|Samuel L. Jackson
Philip K. Dick|Ursula K. Le Guin|Martin Luther King Jr.|Kurt Vonnegut, Jr.
Henry Louis Gates Jr.|Cal Ripken Jr.|Robert Downey Jr.|Harry Connick Jr.
Søren Kierkegaard|Hans Christian Andersen|Edvard Grieg|Björn Borg|Gunnar Åkerström
Ernst Jünger|Günter Grass|Jürgen Habermas|Käthe Kollwitz|Karl-Theodor zu Guttenberg
Václav Havel|Antonín Dvořák|Karel Čapek|Lech Wałęsa|Stanisław Lem|Tomáš Masaryk
Nikola Tesla|Slobodan Milošević|Novak Đoković|İsmet İnönü|Orhan Pamuk
Nguyễn Ái Quốc|Ngô Đình Diệm|Mao Zedong|Deng Xiaoping|Sun Yat-sen|Kim Il-sung
Akira Kurosawa|Haruki Murakami|Aung San Suu Kyi|Ban Ki-moon
Лев Толстой|Антон Чехов|Σωκράτης|毛泽东|김대중|محمد علي
Daniel Day-Lewis|Helena Bonham Carter|Catherine Zeta-Jones|Sacha Baron Cohen
Andrew Lloyd Webber|Ralph Vaughan Williams|Kristin Scott Thomas|Mary-Kate Olsen
Elizabeth Cady Stanton|Harriet Beecher Stowe|Mary Wollstonecraft Shelley
""".replace("\n", "|").split("|")  # fmt: skip
EMAILS = """
ann@xn--p1ai.xn--p1ai|info@example.xn--p1ai|ann@mail.example.xn--fiqs8s
o'neil@example.com|ann.o'brien@example.ie|first.last@sub.mail.example.co.uk
ann+news@example.org|ann_lee@example.org|ann-lee@ex-ample.org|a@b.example.museum
käthe@straße.example|иван@почта.рф|用户@例子.中国|ann@mail.example.中国
user@mail.example.c0m|user!tag@example.org|ann#x@example.org|ann&bob@example.org
ann{x}@example.org|ann~x@example.org|ann..lee@example.org|user@उदाहरण.भारत
ann@mail.example.भारत|ann@example.org.123|ann@127.0.0.1|ann@[127.0.0.1]
o’neil@example.com|x@y.भरात|ann$lee@example.org|ann*lee@example.org
""".strip().replace("\n", "|").split("|")  # fmt: skip
ADDRESSES = """
1600 Pennsylvania Avenue NW|10 Downing Street, London SW1A 2AA|221B Baker Street
12 1/2 Oak Street|350 5th Ave, Floor 34|5 Queen Street East|1 Park Avenue South
12-14 Oak Street|P.O. Box 1234-B|P.O. Box 1234|12 Oak Street, Springfield IL 62704
6546 Dorsey Lane, Dyerville, OH 97847|100 Main St. N.W.|7 Rue de Rivoli
350 W. 42nd St Apt 5B|12 Martin Luther King Jr. Blvd|3 Unter den Linden
4 Elm Street Northeast|20 W 34th St., New York, NY 10001|99 Hill Road, Room 4
""".strip().replace("\n", "|").split("|")  # fmt: skip
STRINGS = [
    *(("NAME", name) for name in NAMES if name),
    *(("EMAIL", address) for address in EMAILS),
    *(("ADDRESS", address) for address in ADDRESSES),
]
FRAMES = ("{} was there.", "yesterday we met {} again", "It was {}, they said.", "({})")


def decomposed(string):
    return unicodedata.normalize("NFD", string)


def test_the_list_is_long():
    assert len({string for _, string in STRINGS}) >= 150


@pytest.mark.parametrize("form", [str, decomposed], ids=["composed", "decomposed"])
@pytest.mark.parametrize("frame", FRAMES)
def test_no_public_string_is_cut(frame, form):
    cut = []
    for _, string in STRINGS:
        written = form(string)
        text = frame.format(written)
        start = text.index(written)
        end = start + len(written)
        for span in find_identifiers(text):
            touches = span.start < end and start < span.end
            if touches and (span.start, span.end) != (start, end):
                cut.append((string, text[span.start : span.end]))
    assert cut == []


@pytest.mark.parametrize("form", [str, decomposed], ids=["composed", "decomposed"])
def test_many_public_strings_are_found(form):
    n_found = {"NAME": 0, "EMAIL": 0, "ADDRESS": 0}
    for type_name, string in STRINGS:
        written = form(string)
        text = f"yesterday we met {written} again"
        identifiers = {(s.type, text[s.start : s.end]) for s in find_identifiers(text)}
        n_found[type_name] += (type_name, written) in identifiers
    assert n_found["NAME"] >= 40
    assert n_found["EMAIL"] >= 12
    assert n_found["ADDRESS"] >= 8


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("we met Rene\u0301 Mueller there", "Rene\u0301 Mueller"),
        ("by Ludwig van Beethoven.", "Ludwig van Beethoven"),
        ("to ann@example.xn--p1ai.", "ann@example.xn--p1ai"),
        ("at 1600 Pennsylvania Avenue NW.", "1600 Pennsylvania Avenue NW"),
        ("Kevin's car", "Kevin"),
        ("we met Andrew Lloyd Webber", None),
        ("we met Mary Jones", "Mary Jones"),
    ],
)
def test_whole_strings_are_found(text, wanted):
    identifiers = [text[s.start : s.end] for s in find_identifiers(text)]
    assert identifiers == ([wanted] if wanted else [])
