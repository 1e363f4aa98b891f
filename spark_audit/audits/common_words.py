"""Words that anybody would try as a mail address, or that are no part of a name.

They are the first guesses of a model that never read an address: offices, given names
and everyday words. Such lists are never complete. A word that they lack counts as
unguessable only if its string has one of many equally likely values
(:mod:`~spark_audit.audits.unguessable`). All words are case-folded, as the texts are
that they are compared with.
"""

from __future__ import annotations

OFFICES = frozenset(
    "accounting accounts admin administration ask billing booking bookings career "
    "careers center centre claims client clients complaints contact customer customers "
    "customerservice desk email enquiries enquiry feedback finance hello help helpdesk "
    "hotline info information inquiries inquiry invoice invoices jobs legal mail "
    "mailbox marketing media newsletter noreply office order orders payments "
    "postmaster press privacy reception refunds reply reservation reservations returns "
    "sales secretary security service services shop signup staff store support team "
    "tech technical tickets webmaster".split()
)
"""Words of local parts that anybody would try."""

EVERYDAY_WORDS = frozenset(
    "abcd apple baker bank beach black blue board books cafe city class cloud club "
    "coach crew data demo doctor dream email event every family farm first games gold "
    "good green group happy home hotel house kasse kontakt lady life light local love "
    "lucky magic mama mine money moon music name news night none null papa party "
    "people photo pizza plus post praxis qwert real root school secret shop silver "
    "smile someone sport star student studio sunny super taxi teacher test tester "
    "tiger time travel trial user users value verein welcome white work world your "
    "yoga young".split()
)
"""Words that are local parts by themselves, and no surnames."""

GIVEN_NAMES = frozenset(
    # English
    "aaron abby adam alan alex alexander alice alison allan amanda amber amelia amy "
    "andrea andrew andy angela ann anna anne anthony ashley austin barbara becky ben "
    "benjamin beth betty bill billy bob brad brandon brenda brian bruce bryan carl "
    "carol caroline catherine charles charlie charlotte chloe chris christian "
    "christina christine christopher cindy claire connor craig cynthia dan daniel "
    "danielle danny dave david dawn dean deborah debra dennis diana diane donald "
    "donna dorothy doug douglas dylan ed eddie edward eleanor elizabeth ella ellen "
    "emily emma eric erin ethan eva evan evelyn fiona frances frank fred gary gemma "
    "george gina grace graham grant greg gregory hannah harold harry heather helen "
    "henry holly howard hugh ian isaac isabella isla jack jackie jacob jake james "
    "jamie jane janet jason jean jeff jeffrey jenna jennifer jenny jeremy jerry "
    "jessica jill jim jimmy joan joanna joe joel john johnny jon jonathan jordan "
    "joseph josh joshua joyce juan judith judy julia julian julie justin karen kate "
    "katherine kathleen kathy katie keith kelly ken kenneth kevin kim kyle larry "
    "laura lauren leah lee leo leslie liam lily linda lisa logan lori louis louise "
    "lucas lucy luke lynn madison marc margaret maria marie marilyn mark martha "
    "martin mary mason matt matthew max megan melanie melissa mia michael michelle "
    "mike molly monica nancy naomi natalie nathan neil nicholas nick nicola nicole "
    "nina noah nora oliver olivia oscar owen pamela patricia patrick paul paula peggy "
    "peter phil philip phillip rachel ralph randy ray raymond rebecca richard rick "
    "rita rob robert robin roger ron ronald rosa rose roy russell ruth ryan sally sam "
    "samantha samuel sandra sara sarah scott sean sharon sheila shirley simon sofia "
    "sophia sophie stacy stella stephanie stephen steve steven stuart sue susan "
    "suzanne sylvia tara taylor ted teresa terry theo theresa thomas tim timothy tina "
    "todd tom tommy toni tony tracy travis tyler vanessa vera vicky victor victoria "
    "vincent violet virginia walter wayne wendy william zach zoe "
    # German and Dutch
    "achim alexandra anja anke annette antje arne astrid axel bernd bernhard birgit "
    "bjoern brigitte carsten christa christoph claudia daan daniela detlef dieter "
    "dirk doris elena elke emil erich erika erwin finn florian franz franziska frieda "
    "fritz gabi gabriele georg gerd gerhard gisela greta guenter gunter hans heike "
    "heiko heinrich heinz helga helmut herbert hermann hilde holger horst ilse inge "
    "ingo ingrid irene jan jana jens joachim jochen johann johanna johannes jonas "
    "jorg juergen jutta kai karin karl karla katharina katja katrin kerstin klaus "
    "konrad kurt lars lena leon leonie lina lotte ludwig lukas manfred manuela marcel "
    "marco marcus mareike marion marius markus marlene matthias maximilian merle "
    "miriam monika moritz nadine nils norbert olaf olga oskar otto petra philipp "
    "rainer ralf regina reinhard renate roland rolf rudi rudolf sabine sandro sascha "
    "sebastian silke silvia sonja stefan stefanie susanne svenja sven tanja theresia "
    "thorsten tobias torsten udo ulf ulrich ulrike ursula ute uwe volker werner "
    "wilhelm wolfgang yvonne "
    # Spanish, Portuguese, French and Italian
    "alain alberto alejandro alessandro ana andre andres angel antoine antonio arnaud "
    "beatriz bruno camille carla carlos carmen cecile celine chiara claude cristina "
    "diego elisa emilie enrique fabio federica felipe fernando filipe flavio "
    "francesca francesco francisco francois gabriel giorgio giovanni giulia giuseppe "
    "gonzalo guillaume gustavo henri hugo ignacio ines isabel jacques javier jesus "
    "joana joao jorge jose josef juana juliette laurent leonardo lorenzo lucia luigi "
    "luis luisa manon manuel marcela marcelo margot mario marta mateo mathieu matteo "
    "mauricio michel miguel nathalie nicolas pablo paola paolo pascal paulo pedro "
    "philippe pierre pilar rafael raul rene ricardo riccardo roberto rodrigo romain "
    "salvatore santiago sergio simone stefano sylvie thierry valentina valerie "
    "veronica "
    # Slavic, Nordic, Turkish, Arabic, Hebrew, Persian
    "agata agnieszka ahmad ahmed aleksandra ali alina amir anders andrei andrej aneta "
    "anton arek artur asli ayse bartek beata boris can dana dario deniz dmitri dorota "
    "elif emre erik ewa fatima fatma filip goran grzegorz hamza hasan hassan hussein "
    "ibrahim igor irina ivan ivana jakub jaroslav jasmin johan kamil karim karol "
    "kasia katarzyna khalid krzysztof lara leila lejla luka magda maja marek mariam "
    "marija mateusz mehmet mikael milan milena mira mohamed mohammad mohammed "
    "muhammad murat mustafa nadia natalia natasha nikola nour omar ömer osman pavel "
    "pawel petar petr piotr rami rania reza samir selin serkan sergei sergey svetlana "
    "tamara tatjana tomas tomasz veronika viktor vladimir wojtek yasmin yusuf zeynep "
    "zofia zuzana "
    # Indian, Chinese, Japanese, Korean and Vietnamese, in Latin letters
    "aditi aditya akash akira amit anil anita anjali ankit aoi arjun arun asha ashok "
    "chen deepak divya fang feng haruto hiroshi hong huang hui hung jian jing jun "
    "kavita kenji kiran kumar linh mai manish mei meera min ming minh naoki neha "
    "nikhil ping pooja prakash priya rahul raj rajesh ravi rohan rohit sachin sakura "
    "sanjay sato shreya sunil sunita suresh takashi tanaka thanh trang tuan vijay "
    "wang wei xiao yuan yuki zhang".split()
)
"""Frequent given names, and surnames that are tried as often: guesses of a local part
that is one word."""

FORMS_OF_ADDRESS = frozenset(
    "dipl dr frau herr ing judge lady lord madam miss mister mme monsieur mr mrs ms mx "
    "phd prof professor sen señor señora signor signora sir".split()
)
"""Words in front of a name that are no part of it."""

EAST_ASIAN_FORMS_OF_ADDRESS = (
    "先生",
    "女士",
    "小姐",
    "太太",
    "老師",
    "老师",
    "さん",
    "さま",
    "くん",
    "ちゃん",
    "様",
    "氏",
    "君",
    "씨",
    "님",
    "선생님",
    "선생",
)
"""Forms of address behind a Chinese, Japanese or Korean name, no part of it."""

COMPOUND_SURNAMES = frozenset(
    "欧阳 歐陽 司马 司馬 上官 诸葛 諸葛 夏侯 东方 東方 皇甫 尉迟 尉遲 "
    "公孙 公孫 慕容 令狐 司徒 "
    "남궁 황보 제갈 선우 독고 사공 서문".split()
)
"""Chinese and Korean surnames of two characters; others have one."""
